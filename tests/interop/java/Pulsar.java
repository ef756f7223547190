// Apache Pulsar's managed ledgers behind a pipe.  A line of words is a command, a line is the
// answer: "ok ..." or "error 0 CLASS MESSAGE".
//
//   positions FILE OUT                what Pulsar's PositionInfo makes of each record of FILE (four
//                                     bytes of length before each): a line each in OUT, "refused"
//                                     or "LEDGER ENTRY RANGES PROPERTIES"
//   open ZOOKEEPER URI NAME CURSOR    opens the managed ledger and the cursor as a broker does, and
//                                     reads to the end: the mark-delete position, then each entry
//                                     that is delivered; closes it again
//   properties ZOOKEEPER URI NAME CURSOR
//                                     opens them likewise: the mark-delete position, then each
//                                     property of the cursor, NAME=NUMBER; closes them again
//   mark ZOOKEEPER URI NAME CURSOR [NAME=NUMBER ...]
//                                     opens them likewise, and marks everything as deleted with
//                                     these properties: the position; closes them again

import java.io.BufferedInputStream;
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerImpl;
import org.apache.bookkeeper.mledger.proto.PositionInfo;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

public final class Pulsar {
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // whatever libraries print is no answer
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = commands.readLine()) != null) {
            String answer;
            try {
                answer = "ok " + execute(line.split(" "));
            } catch (Throwable error) {
                error.printStackTrace();
                answer = "error 0 " + error.toString().replace('\n', ' ');
            }
            answers.println(answer);
            answers.flush();
        }
        System.exit(0); // threads of libraries may be left
    }

    private static String execute(String[] words) throws Exception {
        switch (words[0]) {
            case "positions":
                return Integer.toString(positions(Path.of(words[1]), Path.of(words[2])));
            case "open":
                return with(words, (ledger, cursor) -> deliver(cursor));
            case "properties":
                return with(words, (ledger, cursor) -> properties(cursor));
            case "mark":
                return with(words, (ledger, cursor) -> mark(ledger, cursor, words));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static int positions(Path records, Path out) throws Exception {
        int count = 0;
        try (DataInputStream in =
                        new DataInputStream(
                                new BufferedInputStream(Files.newInputStream(records), 1 << 20));
                BufferedWriter lines = Files.newBufferedWriter(out)) {
            while (true) {
                int size;
                try {
                    size = in.readInt();
                } catch (EOFException end) {
                    return count;
                }
                lines.write(position(in.readNBytes(size)));
                lines.newLine();
                count++;
            }
        }
    }

    private static String position(byte[] record) {
        PositionInfo info = new PositionInfo();
        try {
            info.parseFrom(record);
            info.materialize(); // so that nothing is left for later
            return info.getLedgerId()
                    + " "
                    + info.getEntryId()
                    + " "
                    + (info.getIndividualDeletedMessagesCount()
                            + info.getIndividualDeletedMessageRangesCount())
                    + " "
                    + info.getPropertiesCount();
        } catch (RuntimeException refused) {
            return "refused";
        }
    }

    private interface Act {
        String on(ManagedLedger ledger, ManagedCursor cursor) throws Exception;
    }

    private static String deliver(ManagedCursor cursor) throws Exception {
        StringBuilder told = new StringBuilder(cursor.getMarkDeletedPosition().toString());
        while (cursor.hasMoreEntries()) {
            for (Entry entry : cursor.readEntries(100)) {
                told.append(' ').append(entry.getPosition());
                entry.release();
            }
        }
        return told.toString();
    }

    private static String properties(ManagedCursor cursor) {
        StringBuilder told = new StringBuilder(cursor.getMarkDeletedPosition().toString());
        new TreeMap<>(cursor.getProperties())
                .forEach((name, number) -> told.append(' ').append(name + "=" + number));
        return told.toString();
    }

    private static String mark(ManagedLedger ledger, ManagedCursor cursor, String[] words)
            throws Exception {
        Map<String, Long> properties = new HashMap<>();
        for (String word : Arrays.copyOfRange(words, 5, words.length)) {
            int end = word.lastIndexOf('=');
            properties.put(word.substring(0, end), Long.parseLong(word.substring(end + 1)));
        }
        // A managed ledger that opens moves the cursors that are done to its new ledger, in another
        // thread.  The last confirmed entry lies before that, unless its ledger has been trimmed.
        ((ManagedLedgerImpl) ledger).maybeUpdateCursorBeforeTrimmingConsumedLedger().get();
        while (true) {
            Position end = ledger.getLastConfirmedEntry();
            Position done = cursor.getMarkDeletedPosition();
            Position last = end.compareTo(done) < 0 ? done : end;
            try {
                cursor.markDelete(last, properties);
            } catch (ManagedLedgerException moved) {
                if (cursor.getMarkDeletedPosition().compareTo(last) <= 0) {
                    throw moved;
                }
            }
            if (cursor.getProperties().equals(properties)) {
                return last.toString();
            }
        }
    }

    /** Opens the managed ledger and the cursor that the words name, as a broker does. */
    private static String with(String[] words, Act act) throws Exception {
        String zookeeper = words[1], uri = words[2], name = words[3], cursorName = words[4];
        MetadataStoreConfig metadata =
                MetadataStoreConfig.builder().sessionTimeoutMillis(120_000).build();
        ClientConfiguration client = new ClientConfiguration();
        client.setMetadataServiceUri(uri);
        client.setZkTimeout(120_000);
        ManagedLedgerConfig config = new ManagedLedgerConfig();
        config.setCreateIfMissing(false);
        config.setEnsembleSize(3).setWriteQuorumSize(3).setAckQuorumSize(2);
        config.setMetadataEnsembleSize(3);
        config.setMetadataWriteQuorumSize(3);
        config.setMetadataAckQuorumSize(2);
        String told;
        try (MetadataStoreExtended store =
                MetadataStoreExtended.create("zk:" + zookeeper, metadata)) {
            ManagedLedgerFactoryImpl factory = new ManagedLedgerFactoryImpl(store, client);
            try {
                ManagedLedger ledger = factory.open(name, config);
                told = act.on(ledger, ledger.openCursor(cursorName));
                ledger.close();
            } finally {
                factory.shutdown();
            }
        }
        return told;
    }
}
