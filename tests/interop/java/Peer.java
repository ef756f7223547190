// Apache BookKeeper's client and tools behind a pipe.  A line of words is a command, a line is the
// answer: "ok ..." or "error CODE CLASS MESSAGE".
//
// The payload of entry i has bytes (31 i + j) mod 256 for j = 0, 1, ...; "read" checks them.
// Handles and clients are known by the names that the commands give them.

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.api.BKException;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.ForceableHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.LoggerConfig;
import org.apache.logging.log4j.core.config.Property;

public final class Peer {
    private final Map<String, BookKeeper> clients = new HashMap<>();
    private final Map<String, ReadHandle> handles = new HashMap<>();
    private final Map<String, Long> nextEntry = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // whatever libraries print is no answer
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Peer peer = new Peer();
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(peer.answer(line.split(" ")));
            answers.flush();
        }
        System.exit(0);
    }

    private String answer(String[] words) {
        try {
            return ("ok " + run(words[0], Arrays.copyOfRange(words, 1, words.length))).trim();
        } catch (Throwable thrown) {
            Throwable cause = thrown;
            while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                    && cause.getCause() != null) {
                cause = cause.getCause();
            }
            int code = cause instanceof BKException ? ((BKException) cause).getCode() : 0;
            cause.printStackTrace();
            String message = String.valueOf(cause.getMessage()).replace('\n', ' ');
            return "error " + code + " " + cause.getClass().getSimpleName() + " " + message;
        }
    }

    private Object run(String command, String[] words) throws Exception {
        switch (command) {
            case "init": return init(words[0]);
            case "connect": return connect(words);
            case "disconnect": return disconnect(words[0]);
            case "create": return create(words);
            case "append": return append(words[0], number(words[1]), (int) number(words[2]));
            case "append-at": return appendAt(words);
            case "force": return force(words[0]);
            case "close": return close(words[0]);
            case "open": return open(words);
            case "read": return read(words);
            case "read-unconfirmed": return readUnconfirmed(words);
            case "entries": return entries(words[0], words[1], number(words[2]));
            case "batch-read": return batchRead(words);
            case "lac": return handles.get(words[0]).readLastAddConfirmed();
            case "wait-lac": return waitLac(words);
            case "metadata": return metadata(clients.get(words[0]), number(words[1]));
            case "list": return list(words[0]);
            case "bookies": return bookies(words[0]);
            case "delete": return delete(words[0], number(words[1]));
            case "shell": return shell(words);
            default: throw new IllegalArgumentException("unknown command " + command);
        }
    }

    private static long number(String word) {
        return Long.parseLong(word);
    }

    private static byte[] bytes(String word) {
        return word.equals("-") ? new byte[0] : word.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] payload(long entryId, int size) {
        byte[] payload = new byte[size];
        for (int j = 0; j < size; j++) {
            payload[j] = (byte) (31 * entryId + j);
        }
        return payload;
    }

    /** init URI: what a cluster needs in ZooKeeper. */
    private static Object init(String uri) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(uri);
        return BookKeeperAdmin.initNewCluster(configuration);
    }

    /** connect CLIENT URI v2|v3 [key=value ...]. */
    private Object connect(String[] words) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(words[1]);
        configuration.setUseV2WireProtocol(words[2].equals("v2"));
        for (int i = 3; i < words.length; i++) {
            String[] setting = words[i].split("=", 2);
            configuration.setProperty(setting[0], setting[1]);
        }
        clients.put(words[0], new BookKeeper(configuration));
        return "";
    }

    private Object disconnect(String client) throws Exception {
        clients.remove(client).close();
        return "";
    }

    /** create CLIENT HANDLE DIGEST PASSWORD E WQ AQ [advanced] [deferred] [id=N]: the ledger's id. */
    private Object create(String[] words) throws Exception {
        CreateBuilder builder = clients.get(words[0]).newCreateLedgerOp()
                .withDigestType(DigestType.valueOf(words[2]))
                .withPassword(bytes(words[3]))
                .withEnsembleSize((int) number(words[4]))
                .withWriteQuorumSize((int) number(words[5]))
                .withAckQuorumSize((int) number(words[6]));
        List<String> options = Arrays.asList(words).subList(7, words.length);
        if (options.contains("deferred")) {
            builder = builder.withWriteFlags(WriteFlag.DEFERRED_SYNC);
        }
        ReadHandle handle;
        String given = options.stream().filter(o -> o.startsWith("id=")).findAny().orElse(null);
        if (given != null) {
            handle = builder.makeAdv().withLedgerId(number(given.substring(3))).execute().get();
        } else if (options.contains("advanced")) {
            handle = builder.makeAdv().execute().get();
        } else {
            handle = builder.execute().get();
        }
        handles.put(words[1], handle);
        nextEntry.put(words[1], 0L);
        return handle.getId();
    }

    /** append HANDLE COUNT SIZE: all are confirmed; the last id. */
    private Object append(String name, long count, int size) throws Exception {
        WriteHandle handle = (WriteHandle) handles.get(name);
        List<CompletableFuture<Long>> appended = new ArrayList<>();
        long first = nextEntry.get(name);
        for (long entryId = first; entryId < first + count; entryId++) {
            appended.add(handle.appendAsync(payload(entryId, size)));
        }
        for (int i = 0; i < count; i++) {
            long entryId = appended.get(i).get();
            if (entryId != first + i) {
                throw new IllegalStateException("entry " + entryId + ", not " + (first + i));
            }
        }
        nextEntry.put(name, first + count);
        return first + count - 1;
    }

    /** append-at HANDLE SIZE ENTRY...: in this order; all are confirmed. */
    private Object appendAt(String[] words) throws Exception {
        WriteAdvHandle handle = (WriteAdvHandle) handles.get(words[0]);
        List<CompletableFuture<Long>> appended = new ArrayList<>();
        for (int i = 2; i < words.length; i++) {
            byte[] payload = payload(number(words[i]), (int) number(words[1]));
            appended.add(handle.writeAsync(number(words[i]), payload));
        }
        for (CompletableFuture<Long> one : appended) {
            one.get();
        }
        return "";
    }

    private Object force(String name) throws Exception {
        ((ForceableHandle) handles.get(name)).force().get();
        return handles.get(name).getLastAddConfirmed();
    }

    private Object close(String name) throws Exception {
        handles.remove(name).close();
        return "";
    }

    /** open CLIENT HANDLE LEDGER DIGEST PASSWORD recover|follow: LAC, length, closed. */
    private Object open(String[] words) throws Exception {
        ReadHandle handle = clients.get(words[0]).newOpenLedgerOp()
                .withLedgerId(number(words[2]))
                .withDigestType(DigestType.valueOf(words[3]))
                .withPassword(bytes(words[4]))
                .withRecovery(words[5].equals("recover"))
                .execute().get();
        handles.put(words[1], handle);
        return handle.getLastAddConfirmed() + " " + handle.getLength() + " " + handle.isClosed();
    }

    /** read HANDLE FIRST LAST SIZE: how many entries, all of that size and content. */
    private Object read(String[] words) throws Exception {
        try (LedgerEntries entries = handles.get(words[0])
                .readAsync(number(words[1]), number(words[2])).get()) {
            return check(entries, number(words[1]), (int) number(words[3]));
        }
    }

    /** The same, also behind the LAC. */
    private Object readUnconfirmed(String[] words) throws Exception {
        try (LedgerEntries entries = handles.get(words[0])
                .readUnconfirmedAsync(number(words[1]), number(words[2])).get()) {
            return check(entries, number(words[1]), (int) number(words[3]));
        }
    }

    /** entries CLIENT BOOKIE LEDGER: how many the bookie lists, as auto-recovery asks for them. */
    private Object entries(String client, String bookie, long ledgerId) throws Exception {
        return new BookKeeperAdmin(clients.get(client))
                .asyncGetListOfEntriesOfLedger(BookieId.parse(bookie), ledgerId)
                .get().getTotalNumOfAvailableEntries();
    }

    /** batch-read HANDLE FIRST COUNT BYTES SIZE: how many entries came. */
    private Object batchRead(String[] words) throws Exception {
        try (LedgerEntries entries = handles.get(words[0])
                .batchReadAsync(number(words[1]), (int) number(words[2]), number(words[3])).get()) {
            return check(entries, number(words[1]), (int) number(words[4]));
        }
    }

    private static long check(LedgerEntries entries, long first, int size) {
        long count = 0;
        for (LedgerEntry entry : entries) {
            long entryId = first + count++;
            if (entry.getEntryId() != entryId
                    || !Arrays.equals(entry.getEntryBytes(), payload(entryId, size))) {
                throw new IllegalStateException("entry " + entryId + " is not what was appended");
            }
        }
        return count;
    }

    /** wait-lac HANDLE ENTRY MILLISECONDS SIZE: LAC, and whether the entry came with it. */
    private Object waitLac(String[] words) throws Exception {
        try (LastConfirmedAndEntry answer = handles.get(words[0])
                .readLastAddConfirmedAndEntryAsync(number(words[1]), number(words[2]), false)
                .get()) {
            byte[] expected = payload(number(words[1]), (int) number(words[3]));
            if (answer.hasEntry() && !Arrays.equals(answer.getEntry().getEntryBytes(), expected)) {
                throw new IllegalStateException("another entry");
            }
            return answer.getLastAddConfirmed() + " " + answer.hasEntry();
        }
    }

    /** State, last entry, length, digest, and the ensembles. */
    private static Object metadata(BookKeeper client, long ledgerId) throws Exception {
        LedgerMetadata metadata = client.getLedgerManager().readLedgerMetadata(ledgerId).get().getValue();
        StringBuilder text = new StringBuilder();
        text.append(metadata.getState()).append(' ').append(metadata.getLastEntryId());
        text.append(' ').append(metadata.getLength()).append(' ').append(metadata.getDigestType());
        for (Map.Entry<Long, ? extends List<BookieId>> e : metadata.getAllEnsembles().entrySet()) {
            text.append(' ').append(e.getKey());
            for (BookieId bookie : e.getValue()) {
                text.append(',').append(bookie);
            }
        }
        return text;
    }

    private Object list(String client) throws Exception {
        Set<Long> ids = new TreeSet<>();
        new BookKeeperAdmin(clients.get(client)).listLedgers().forEach(ids::add);
        return join(ids);
    }

    /** The ids of all writable bookies, with the addresses that their ids resolve to. */
    private Object bookies(String client) throws Exception {
        BookKeeperAdmin admin = new BookKeeperAdmin(clients.get(client));
        Set<String> found = new TreeSet<>();
        for (BookieId bookie : admin.getAvailableBookies()) {
            int port = clients.get(client).getBookieAddressResolver().resolve(bookie).getPort();
            found.add(bookie + "=" + port);
        }
        return join(found);
    }

    private static String join(Set<?> items) {
        StringBuilder text = new StringBuilder();
        items.forEach(item -> text.append(' ').append(item));
        return text.toString().trim();
    }

    private Object delete(String client, long ledgerId) throws Exception {
        clients.get(client).newDeleteLedgerOp().withLedgerId(ledgerId).execute().get();
        return "";
    }

    /** shell URI WORDS...: its exit code and what it says (by its log, mostly), in one line. */
    private static Object shell(String[] words) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(words[0]);
        configuration.setAllowLoopback(true);
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream said8 = new PrintStream(said, true, StandardCharsets.UTF_8);
        PrintStream before = System.out;
        Collector collector = new Collector(said8);
        LoggerContext logging = (LoggerContext) LogManager.getContext(false);
        LoggerConfig root = logging.getConfiguration().getRootLogger();
        Level level = root.getLevel();
        System.setOut(said8);
        root.addAppender(collector, Level.INFO, null);
        root.setLevel(Level.INFO);
        logging.updateLoggers();
        try {
            BookieShell shell = new BookieShell(
                    LedgerIdFormatter.newLedgerIdFormatter(configuration),
                    EntryFormatter.newEntryFormatter(configuration));
            shell.setConf(configuration);
            int code = shell.run(Arrays.copyOfRange(words, 1, words.length));
            return code + " " + said.toString(StandardCharsets.UTF_8).replace('\n', '|');
        } finally {
            System.setOut(before);
            root.removeAppender(collector.getName());
            root.setLevel(level);
            logging.updateLoggers();
        }
    }

    /** Takes down what is logged. */
    private static final class Collector extends AbstractAppender {
        private final PrintStream lines;

        Collector(PrintStream lines) {
            super("collector", null, null, true, Property.EMPTY_ARRAY);
            this.lines = lines;
            start();
        }

        @Override
        public void append(LogEvent event) {
            lines.println(event.getMessage().getFormattedMessage() + event.getContextData());
        }
    }
}
