// Apache Pulsar's Java client as a load, behind a pipe.  A line is a command, "NAME key=value ...";
// a line is the answer, "ok key=value ..." or "error 0 CLASS MESSAGE".  bench/brokers/loads.py lists
// the commands; KafkaLoad.java has the same with Kafka's client.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

public final class PulsarLoad {
    private static final int PATIENCE_SECONDS = 120; // the machine may have more to do than this
    private static final int CLOCK_EVERY = 16; // messages between two looks at the clock
    private static final int ACK_EVERY = 1000; // messages that a read acknowledges at once

    private final Map<String, PulsarClient> clients = new HashMap<>();
    private final List<Producer<byte[]>> producers = new ArrayList<>();
    private final List<Consumer<byte[]>> consumers = new ArrayList<>();
    private final AtomicLong delivered = new AtomicLong();
    private byte[] data;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // whatever libraries print is no answer
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PulsarLoad load = new PulsarLoad();
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(load.answer(line.split(" ")));
            answers.flush();
        }
        System.exit(0);
    }

    private String answer(String[] words) {
        Map<String, String> given = new HashMap<>();
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

    private String run(String command, Map<String, String> given) throws Exception {
        switch (command) {
            case "connect":
                clients.put(given.get("on"), PulsarClient.builder().serviceUrl(given.get("url")).build());
                return "";
            case "open": return open(given);
            case "send": return send(given);
            case "close": return close();
            case "read": return read(given);
            default: throw new IllegalArgumentException("unknown command " + command);
        }
    }

    // ---- sending

    private String open(Map<String, String> given) throws Exception {
        PulsarClient client = clients.get(given.get("on"));
        data = new byte[Integer.parseInt(given.get("size"))];
        new Random(1).nextBytes(data);
        delivered.set(0);
        for (int i = 0; i < Integer.parseInt(given.get("subscriptions")); i++) {
            consumers.add(client.newConsumer().topic(given.get("topic")).subscriptionName("s" + i)
                    .messageListener((consumer, message) -> {
                        consumer.acknowledgeAsync(message);
                        delivered.incrementAndGet();
                    }).subscribe());
        }
        for (int i = 0; i < Integer.parseInt(given.get("producers")); i++) {
            ProducerBuilder<byte[]> builder = client.newProducer().topic(given.get("topic"))
                    .blockIfQueueFull(true).sendTimeout(PATIENCE_SECONDS, TimeUnit.SECONDS);
            switch (given.get("batch")) {
                case "none": builder.enableBatching(false); break;
                case "usual": break;
                case "large":
                    builder.batchingMaxPublishDelay(10, TimeUnit.MILLISECONDS).batchingMaxMessages(20_000)
                            .batchingMaxBytes(1 << 20).maxPendingMessages(50_000);
                    break;
                default: throw new IllegalArgumentException("batch=" + given.get("batch"));
            }
            producers.add(builder.create());
        }
        return "";
    }

    private String send(Map<String, String> given) throws Exception {
        double rate = Double.parseDouble(given.get("rate"));
        double seconds = Double.parseDouble(given.get("seconds"));
        long most = Long.parseLong(given.get("messages"));
        long before = delivered.get();
        AtomicLong stored = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        long[] took = new long[(int) (rate * seconds)];
        long count = 0;
        long started = System.nanoTime();
        if (rate > 0) {
            for (; count < took.length; count++) {
                int index = (int) count;
                long due = started + (long) (count * 1e9 / rate);
                for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                    LockSupport.parkNanos(due - now);
                }
                producers.get(index % producers.size()).sendAsync(data).whenComplete((id, error) -> {
                    took[index] = System.nanoTime() - due;
                    (error == null ? stored : failed).incrementAndGet();
                });
            }
        } else {
            long end = most > 0 ? Long.MAX_VALUE : started + (long) (seconds * 1e9);
            while ((most == 0 || count < most)
                    && (count % CLOCK_EVERY != 0 || System.nanoTime() < end)) {
                producers.get((int) (count % producers.size())).sendAsync(data).whenComplete(
                        (id, error) -> (error == null ? stored : failed).incrementAndGet());
                count++;
            }
        }
        for (Producer<byte[]> producer : producers) {
            producer.flush();
        }
        await(count, stored, failed);
        double spent = (System.nanoTime() - started) / 1e9;
        if (failed.get() > 0) {
            throw new IllegalStateException(failed + " messages were not stored");
        }
        await(before + count * consumers.size(), delivered, new AtomicLong());
        Arrays.sort(took);
        return "messages=" + count + " seconds=" + spent + (rate > 0 ? " p50_ms=" + share(took, 0.5)
                + " p99_ms=" + share(took, 0.99) + " max_ms=" + share(took, 1) : "");
    }

    private static void await(long count, AtomicLong some, AtomicLong others) {
        long until = System.nanoTime() + PATIENCE_SECONDS * 1_000_000_000L;
        while (some.get() + others.get() < count) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException(some + " of " + count + " came in time");
            }
            LockSupport.parkNanos(100_000);
        }
    }

    private static double share(long[] sorted, double part) {
        return sorted[Math.min(sorted.length - 1, (int) (sorted.length * part))] / 1e6;
    }

    private String close() throws Exception {
        for (Producer<byte[]> producer : producers) {
            producer.close();
        }
        for (Consumer<byte[]> consumer : consumers) {
            consumer.close();
        }
        producers.clear();
        consumers.clear();
        return "";
    }

    // ---- reading

    /** Messages from the beginning of a topic, by a new subscription, one by one. */
    private String read(Map<String, String> given) throws Exception {
        long count = Long.parseLong(given.get("messages"));
        long bytes = 0;
        long started = System.nanoTime();
        try (Consumer<byte[]> consumer = clients.get(given.get("on")).newConsumer().topic(given.get("topic"))
                .subscriptionName(given.get("subscription"))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (long i = 1; i <= count; i++) {
                Message<byte[]> message = consumer.receive(PATIENCE_SECONDS, TimeUnit.SECONDS);
                bytes += message.getData().length;
                if (i % ACK_EVERY == 0 || i == count) {
                    consumer.acknowledgeCumulativeAsync(message);
                }
            }
            double spent = (System.nanoTime() - started) / 1e9;
            return "messages=" + count + " bytes=" + bytes + " seconds=" + spent;
        }
    }
}
