// Apache Kafka's Java client as a load, behind a pipe: the same commands as PulsarLoad.java.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class KafkaLoad {
    private static final int PATIENCE_SECONDS = 120; // the machine may have more to do than this
    private static final int CLOCK_EVERY = 16; // messages between two looks at the clock
    private static final short REPLICAS = 3;

    private final List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
    private final List<Thread> consumers = new ArrayList<>();
    private final AtomicLong delivered = new AtomicLong();
    private AtomicBoolean ended = new AtomicBoolean();
    private String url;
    private String topic;
    private byte[] data;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // whatever libraries print is no answer
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        KafkaLoad load = new KafkaLoad();
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
                url = given.get("url");
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
        topic = given.get("topic");
        data = new byte[Integer.parseInt(given.get("size"))];
        new Random(1).nextBytes(data);
        delivered.set(0);
        ended = new AtomicBoolean();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", url))) {
            // A sync of every append before its receipt, as bookies do, and two of three replicas.
            NewTopic made = new NewTopic(topic, 1, REPLICAS)
                    .configs(Map.of("flush.messages", "1", "min.insync.replicas", "2"));
            admin.createTopics(List.of(made)).all().get();
        }
        int subscriptions = Integer.parseInt(given.get("subscriptions"));
        CountDownLatch ready = new CountDownLatch(subscriptions);
        for (int i = 0; i < subscriptions; i++) {
            String group = topic + "-s" + i;
            AtomicBoolean end = ended;
            Thread thread = new Thread(() -> consume(group, ready, end));
            consumers.add(thread);
            thread.start();
        }
        ready.await();
        for (int i = 0; i < Integer.parseInt(given.get("producers")); i++) {
            producers.add(new KafkaProducer<>(settings(given.get("batch")),
                    new ByteArraySerializer(), new ByteArraySerializer()));
        }
        return "";
    }

    private Map<String, Object> settings(String batch) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", url);
        settings.put("acks", "all");
        settings.put("delivery.timeout.ms", PATIENCE_SECONDS * 1000);
        switch (batch) {
            case "none": settings.put("linger.ms", 0); break;
            case "usual": break;
            case "large":
                settings.put("linger.ms", 10);
                settings.put("batch.size", 1 << 20);
                settings.put("buffer.memory", 64L << 20);
                break;
            default: throw new IllegalArgumentException("batch=" + batch);
        }
        return settings;
    }

    /** Every record from now on; positions are committed as the client does it unasked. */
    private void consume(String group, CountDownLatch ready, AtomicBoolean end) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(group)) {
            List<TopicPartition> all = List.of(new TopicPartition(topic, 0));
            consumer.assign(all);
            consumer.seekToEnd(all);
            consumer.position(all.get(0));
            ready.countDown();
            while (!end.get()) {
                int count = consumer.poll(Duration.ofMillis(100)).count();
                if (count > 0) {
                    delivered.addAndGet(count);
                }
            }
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", url);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
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
                producers.get(index % producers.size()).send(record(), (id, error) -> {
                    took[index] = System.nanoTime() - due;
                    (error == null ? stored : failed).incrementAndGet();
                });
            }
        } else {
            long end = most > 0 ? Long.MAX_VALUE : started + (long) (seconds * 1e9);
            while ((most == 0 || count < most)
                    && (count % CLOCK_EVERY != 0 || System.nanoTime() < end)) {
                producers.get((int) (count % producers.size())).send(record(),
                        (id, error) -> (error == null ? stored : failed).incrementAndGet());
                count++;
            }
        }
        for (KafkaProducer<byte[], byte[]> producer : producers) {
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

    private ProducerRecord<byte[], byte[]> record() {
        return new ProducerRecord<>(topic, 0, null, data);
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
        ended.set(true);
        for (KafkaProducer<byte[], byte[]> producer : producers) {
            producer.close();
        }
        for (Thread thread : consumers) {
            thread.join();
        }
        producers.clear();
        consumers.clear();
        return "";
    }

    // ---- reading

    /** Messages from the beginning of a topic, one by one as far as the client has them. */
    private String read(Map<String, String> given) {
        long count = Long.parseLong(given.get("messages"));
        long got = 0;
        long bytes = 0;
        long started = System.nanoTime();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(given.get("subscription"))) {
            List<TopicPartition> all = List.of(new TopicPartition(given.get("topic"), 0));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            while (got < count) {
                ConsumerRecords<byte[], byte[]> records =
                        consumer.poll(Duration.ofSeconds(PATIENCE_SECONDS));
                if (records.isEmpty()) {
                    throw new IllegalStateException(got + " of " + count + " came in time");
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    got++;
                    bytes += record.value().length;
                }
            }
            double spent = (System.nanoTime() - started) / 1e9;
            return "messages=" + got + " bytes=" + bytes + " seconds=" + spent;
        }
    }
}
