// Apache BookKeeper's client as a load, behind a pipe: what bench/peers/load.py does with ours.
// A line is a command, "NAME key=value ..."; a line is the answer, "ok key=value ..." or "error 0
// CLASS MESSAGE".  The commands are described there.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.apache.bookkeeper.client.AsyncCallback.AddCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public final class Load {
    private static final byte[] PASSWORD = new byte[0];
    private static final int PATIENCE_SECONDS = 30; // the machine may have more to do than this
    private static final int CREATED_AT_ONCE = 32;
    private static final int PORTION_BYTES = 1 << 20; // read at once, as our client does
    private static final int PORTIONS_AHEAD = 3;

    private final Map<String, BookKeeper> clients = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // whatever libraries print is no answer
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Load load = new Load();
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(load.answer(line.split(" ")));
            answers.flush();
        }
        System.exit(0);
    }

    private String answer(String[] words) {
        Given given = new Given();
        for (int i = 1; i < words.length; i++) {
            String[] pair = words[i].split("=", 2);
            given.put(pair[0], pair[1]);
        }
        try {
            return "ok " + run(words[0], given);
        } catch (Throwable thrown) {
            thrown.printStackTrace();
            String message = String.valueOf(thrown.getMessage()).replace('\n', ' ');
            return "error 0 " + thrown.getClass().getSimpleName() + " " + message;
        }
    }

    /** What a command says, by name. */
    private static final class Given extends HashMap<String, String> {
        int number(String name) {
            return Integer.parseInt(get(name));
        }

        double real(String name) {
            return Double.parseDouble(get(name));
        }

        List<Long> ledgers() {
            return Arrays.stream(get("ledgers").split(",")).map(Long::valueOf).collect(Collectors.toList());
        }
    }

    private String run(String command, Given given) throws Exception {
        if (command.equals("connect")) {
            return connect(given);
        }
        BookKeeper client = clients.get(given.get("on"));
        switch (command) {
            case "append": return append(client, given);
            case "paced": return paced(client, given);
            case "fill": return fill(client, given);
            case "read": return read(client, given);
            case "recover": return recover(client, given);
            case "delete": return delete(client, given);
            default: throw new IllegalArgumentException("unknown command " + command);
        }
    }

    private String connect(Given given) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri("zk+hierarchical://" + given.get("at"));
        configuration.setUseV2WireProtocol(true);
        configuration.setAddEntryTimeout(PATIENCE_SECONDS);
        configuration.setReadEntryTimeout(PATIENCE_SECONDS);
        configuration.setThrottleValue(0); // the window bounds what is under way
        if (given.containsKey("explicit_lac_s")) {
            configuration.setExplictLacInterval((int) (given.real("explicit_lac_s") * 1000));
        }
        clients.put(given.get("on"), new BookKeeper(configuration));
        return "";
    }

    // ---- ledgers

    private static List<LedgerHandle> create(BookKeeper client, Given given) throws Exception {
        int count = given.number("ledgers");
        LedgerHandle[] made = new LedgerHandle[count];
        AtomicInteger failed = new AtomicInteger();
        Semaphore room = new Semaphore(CREATED_AT_ONCE);
        int bookies = given.number("copies");
        for (int i = 0; i < count; i++) {
            int index = i;
            room.acquire();
            client.asyncCreateLedger(bookies, bookies, bookies == 1 ? 1 : bookies - 1,
                    BookKeeper.DigestType.CRC32C, PASSWORD, (code, handle, context) -> {
                        made[index] = handle;
                        failed.addAndGet(code == BKException.Code.OK ? 0 : 1);
                        room.release();
                    }, null, Map.of());
        }
        room.acquire(CREATED_AT_ONCE);
        if (failed.get() > 0) {
            throw new IllegalStateException(failed + " ledgers could not be made");
        }
        return new ArrayList<>(Arrays.asList(made));
    }

    private static ReadHandle open(BookKeeper client, long ledgerId, boolean recover) throws Exception {
        return client.newOpenLedgerOp().withLedgerId(ledgerId).withDigestType(DigestType.CRC32C)
                .withPassword(PASSWORD).withRecovery(recover).execute().get();
    }

    // ---- writing

    /** Entries to some ledgers in turn, so many of them under way. */
    private static final class Writing implements AddCallback {
        final AtomicLong confirmed = new AtomicLong();
        private final AtomicLong failed = new AtomicLong();
        private final List<LedgerHandle> handles;
        private final byte[] data;
        private final int window;
        private final Semaphore room;
        private int turn;

        Writing(List<LedgerHandle> handles, Given given) {
            this.handles = handles;
            data = new byte[given.number("size")];
            new Random(1).nextBytes(data);
            window = given.number("window");
            room = new Semaphore(window);
        }

        void append() throws InterruptedException {
            room.acquire();
            handles.get(turn).asyncAddEntry(data, this, null);
            turn = turn + 1 == handles.size() ? 0 : turn + 1;
        }

        @Override
        public void addComplete(int code, LedgerHandle handle, long entryId, Object context) {
            (code == BKException.Code.OK ? confirmed : failed).addAndGet(1);
            room.release();
        }

        void flush() throws InterruptedException {
            room.acquire(window);
            room.release(window);
            if (failed.get() > 0) {
                throw new IllegalStateException(failed + " entries were not stored");
            }
        }
    }

    private static String append(BookKeeper client, Given given) throws Exception {
        Writing writing = new Writing(create(client, given), given);
        for (long i = 0; i < given.number("ledgers"); i++) {
            writing.append();
        }
        long warm = System.nanoTime() + (long) (given.real("warm_s") * 1e9);
        while (System.nanoTime() < warm) {
            writing.append();
        }
        long started = System.nanoTime();
        long before = writing.confirmed.get();
        long end = started + (long) (given.real("seconds") * 1e9);
        while (System.nanoTime() < end) {
            writing.append();
        }
        double took = (System.nanoTime() - started) / 1e9;
        long entries = writing.confirmed.get() - before;
        writing.flush();
        return "entries=" + entries + " seconds=" + took + " total=" + writing.confirmed;
    }

    private static String fill(BookKeeper client, Given given) throws Exception {
        List<LedgerHandle> handles = create(client, given);
        Writing writing = new Writing(handles, given);
        long started = System.nanoTime();
        long count = (long) given.number("entries") * handles.size();
        for (long i = 0; i < count; i++) {
            writing.append();
        }
        writing.flush();
        double took = (System.nanoTime() - started) / 1e9;
        if (given.get("close").equals("1")) {
            for (LedgerHandle handle : handles) {
                handle.close();
            }
        }
        String ids = handles.stream().map(h -> String.valueOf(h.getId())).collect(Collectors.joining(","));
        return "ledgers=" + ids + " seconds=" + took;
    }

    /** One entry every so often, whether or not those before it are confirmed. */
    private static String paced(BookKeeper client, Given given) throws Exception {
        LedgerHandle handle = create(client, given).get(0);
        byte[] data = new byte[given.number("size")];
        new Random(1).nextBytes(data);
        double rate = given.real("rate");
        int warm = (int) (rate * given.real("warm_s"));
        int count = warm + (int) (rate * given.real("seconds"));
        long[] took = new long[count];
        Semaphore done = new Semaphore(0);
        AtomicInteger failed = new AtomicInteger();
        long start = System.nanoTime() + 100_000_000L;
        for (int i = 0; i < count; i++) {
            int index = i;
            long due = start + (long) (i * 1e9 / rate);
            for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                LockSupport.parkNanos(due - now);
            }
            handle.asyncAddEntry(data, (code, h, entryId, context) -> {
                took[index] = System.nanoTime() - due;
                failed.addAndGet(code == BKException.Code.OK ? 0 : 1);
                done.release();
            }, null);
        }
        done.acquire(count);
        if (failed.get() > 0) {
            throw new IllegalStateException(failed + " entries were not stored");
        }
        long[] measured = Arrays.copyOfRange(took, warm, count);
        Arrays.sort(measured);
        return "p50_ms=" + share(measured, 0.5) + " p99_ms=" + share(measured, 0.99)
                + " max_ms=" + share(measured, 1);
    }

    private static double share(long[] sorted, double part) {
        return sorted[Math.min(sorted.length - 1, (int) (sorted.length * part))] / 1e6;
    }

    // ---- reading

    private static String read(BookKeeper client, Given given) throws Exception {
        double bytesPerSecond = given.real("mb_per_s") * 1e6;
        double seconds = given.real("seconds");
        long started = System.nanoTime();
        long bytes = 0;
        do {
            for (long ledgerId : given.ledgers()) {
                try (ReadHandle handle = open(client, ledgerId, false)) {
                    long lac = handle.getLastAddConfirmed();
                    long portion = Math.max(1, PORTION_BYTES / Math.max(1, handle.getLength() / (lac + 1)));
                    Queue<CompletableFuture<LedgerEntries>> ahead = new ArrayDeque<>();
                    long next = 0;
                    while (next <= lac || !ahead.isEmpty()) {
                        while (next <= lac && ahead.size() < PORTIONS_AHEAD) {
                            long last = Math.min(lac, next + portion - 1);
                            ahead.add(handle.readAsync(next, last));
                            next = last + 1;
                        }
                        try (LedgerEntries entries = ahead.remove().get()) {
                            for (LedgerEntry entry : entries) {
                                bytes += entry.getEntryBytes().length;
                            }
                        }
                        double spent = (System.nanoTime() - started) / 1e9;
                        if (seconds > 0 && spent >= seconds) {
                            return "bytes=" + bytes + " seconds=" + spent;
                        }
                        if (bytesPerSecond > 0) {
                            LockSupport.parkNanos((long) ((bytes / bytesPerSecond - spent) * 1e9));
                        }
                    }
                }
            }
        } while (seconds > 0);
        return "bytes=" + bytes + " seconds=" + (System.nanoTime() - started) / 1e9;
    }

    private static String recover(BookKeeper client, Given given) throws Exception {
        List<String> took = new ArrayList<>();
        List<String> entries = new ArrayList<>();
        for (long ledgerId : given.ledgers()) {
            long started = System.nanoTime();
            try (ReadHandle handle = open(client, ledgerId, true)) {
                took.add(String.valueOf((System.nanoTime() - started) / 1e6));
                entries.add(String.valueOf(handle.getLastAddConfirmed() + 1));
            }
        }
        return "ms=" + String.join(",", took) + " entries=" + String.join(",", entries);
    }

    private static String delete(BookKeeper client, Given given) throws Exception {
        for (long ledgerId : given.ledgers()) {
            client.deleteLedger(ledgerId);
        }
        return "";
    }
}
