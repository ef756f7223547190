// Apache Pulsar's Java client: one operation after the other, each with topics of its own.
//
// Arguments: service URL, admin URL.  A line for each operation says "NAME: ok", or what went wrong.
// `docs/interop.md` has a table of the operations.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.ConsumerInterceptor;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TopicMetadata;

public final class Operations {
  private interface Work {
    void run(String topic) throws Exception;
  }

  private static final int PATIENCE_S = 20;
  private static PulsarClient client;
  private static String url;
  private static String admin;

  public static void main(String[] args) throws Exception {
    url = args[0];
    admin = args[1];
    client =
        PulsarClient.builder().serviceUrl(url).statsInterval(1, TimeUnit.SECONDS).build();
    producers();
    messages();
    subscriptions();
    acknowledgements();
    places();
    others();
    System.out.println("done");
    System.out.flush();
    System.exit(0);
  }

  private static void producers() {
    run("access mode shared", topic -> {
      producer(topic).accessMode(ProducerAccessMode.Shared).create();
      producer(topic).accessMode(ProducerAccessMode.Shared).create().send(bytes("x"));
    });
    run("access mode exclusive", topic -> {
      Producer<byte[]> one = producer(topic).accessMode(ProducerAccessMode.Exclusive).create();
      refused(PulsarClientException.class,
          () -> producer(topic).accessMode(ProducerAccessMode.Exclusive).create());
      refused(PulsarClientException.ProducerBusyException.class, () -> producer(topic).create());
      one.close();
      producer(topic).accessMode(ProducerAccessMode.Exclusive).create();
    });
    run("access mode wait for exclusive", topic -> {
      Producer<byte[]> one = producer(topic).accessMode(ProducerAccessMode.Exclusive).create();
      CompletableFuture<Producer<byte[]>> two =
          producer(topic).accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
      Thread.sleep(200);
      check(!two.isDone(), "the second producer did not wait");
      one.close();
      two.get(PATIENCE_S, TimeUnit.SECONDS).send(bytes("x"));
    });
    run("access mode exclusive with fencing", topic -> {
      Producer<byte[]> one = producer(topic).accessMode(ProducerAccessMode.Exclusive).create();
      Producer<byte[]> two =
          producer(topic).accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
      two.send(bytes("x"));
      refused(PulsarClientException.class, () -> one.send(bytes("y")));
    });
    run("batching", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      sendBatch(topic, 10);
      Set<String> entries = new TreeSet<>();
      for (int i = 0; i < 10; i++) {
        Message<byte[]> message = next(consumer, "" + i);
        entries.add(((MessageIdAdv) message.getMessageId()).getEntryId() + "");
      }
      check(entries.size() == 1, "in entries " + entries);
    });
    run("batching by key", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      Producer<byte[]> producer =
          producer(topic).enableBatching(true).batcherBuilder(BatcherBuilder.KEY_BASED)
              .batchingMaxPublishDelay(1, TimeUnit.MINUTES).create();
      for (int i = 0; i < 10; i++) {
        producer.newMessage().key("k" + i % 2).value(bytes("" + i)).sendAsync();
      }
      producer.flush();
      Map<Long, Set<String>> keys = new java.util.TreeMap<>();
      for (int i = 0; i < 10; i++) {
        Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
        keys.computeIfAbsent(((MessageIdAdv) message.getMessageId()).getEntryId(),
            entry -> new TreeSet<>()).add(message.getKey());
      }
      check(keys.size() == 2 && keys.values().stream().allMatch(each -> each.size() == 1),
          "keys " + keys);
    });
    run("chunking", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      byte[] large = new byte[12 << 20];
      new java.util.Random(1).nextBytes(large);
      producer(topic).enableBatching(false).enableChunking(true).create().send(large);
      byte[] got = consumer.receive(PATIENCE_S, TimeUnit.SECONDS).getData();
      check(java.util.Arrays.equals(got, large), "the message has changed");
    });
    run("largest message", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      Producer<byte[]> producer = producer(topic).enableBatching(false).create();
      producer.send(new byte[(5 << 20) - 1024]);
      refused(PulsarClientException.InvalidMessageException.class,
          () -> producer.send(new byte[(5 << 20) + 1]));
      check(consumer.receive(PATIENCE_S, TimeUnit.SECONDS).size() > 5_000_000, "small");
    });
    for (CompressionType type : CompressionType.values()) {
      if (type != CompressionType.NONE) {
        run("compression " + type.name().toLowerCase(), topic -> {
          Consumer<byte[]> consumer = consumer(topic).subscribe();
          producer(topic).compressionType(type).create().send(bytes("x".repeat(10_000)));
          next(consumer, "x".repeat(10_000));
        });
      }
    }
    run("encryption", topic -> {
      CryptoKeyReader keys = keys();
      Consumer<byte[]> consumer = consumer(topic).cryptoKeyReader(keys).subscribe();
      producer(topic).addEncryptionKey("key").cryptoKeyReader(keys).create().send(bytes("secret"));
      next(consumer, "secret");
    });
    run("partitioned producer", topic -> {
      put("/persistent/public/default/" + local(topic) + "/partitions", "3");
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      Producer<byte[]> producer = producer(topic).enableBatching(false).create();
      Set<String> names = new TreeSet<>();
      for (int i = 0; i < 6; i++) {
        producer.send(bytes("" + i));
      }
      for (int i = 0; i < 6; i++) {
        names.add(consumer.receive(PATIENCE_S, TimeUnit.SECONDS).getTopicName());
      }
      check(names.size() == 3, "partitions " + names);
    });
    run("message router", topic -> {
      put("/persistent/public/default/" + local(topic) + "/partitions", "3");
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      producer(topic).messageRouter(new org.apache.pulsar.client.api.MessageRouter() {
        @Override
        public int choosePartition(Message<?> message, TopicMetadata metadata) {
          return metadata.numPartitions() - 1;
        }
      }).create().send(bytes("x"));
      check(next(consumer, "x").getTopicName().endsWith("-partition-2"), "another partition");
    });
    run("producer statistics", topic -> {
      Producer<byte[]> producer = producer(topic).create();
      producer.send(bytes("x"));
      until(() -> producer.getStats().getTotalMsgsSent() == 1);
    });
  }

  private static void messages() {
    run("properties, key and event time", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      producer(topic).create().newMessage().key("k").property("a", "b").eventTime(77)
          .sequenceId(5).value(bytes("x")).send();
      Message<byte[]> message = next(consumer, "x");
      check(message.getKey().equals("k") && message.getProperty("a").equals("b")
          && message.getEventTime() == 77 && message.getSequenceId() == 5, message.toString());
    });
    run("ordering key", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      producer(topic).create().newMessage().orderingKey(bytes("o")).value(bytes("x")).send();
      check(new String(next(consumer, "x").getOrderingKey()).equals("o"), "another key");
    });
    run("message without value", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      producer(topic).create().newMessage().key("k").value(null).send();
      Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
      check(message.getValue() == null, "a value");
    });
    run("delayed delivery", topic -> {
      Consumer<byte[]> consumer =
          consumer(topic).subscriptionType(SubscriptionType.Shared).subscribe();
      Producer<byte[]> producer = producer(topic).enableBatching(false).create();
      producer.newMessage().deliverAfter(1500, TimeUnit.MILLISECONDS).value(bytes("late")).send();
      producer.newMessage().value(bytes("now")).send();
      next(consumer, "now");
      next(consumer, "late");
    });
  }

  private static void subscriptions() {
    run("exclusive", topic -> {
      consumer(topic).subscribe();
      refused(PulsarClientException.ConsumerBusyException.class, () -> consumer(topic).subscribe());
    });
    run("failover, and who is active", topic -> {
      BlockingQueue<String> events = new LinkedBlockingQueue<>();
      Consumer<byte[]> one = failover(topic, "a", events);
      expect(events, "a active");
      Consumer<byte[]> two = failover(topic, "b", events);
      expect(events, "b inactive");
      one.close();
      expect(events, "b active");
      two.close();
    });
    run("shared", topic -> {
      Consumer<byte[]> one =
          consumer(topic).subscriptionType(SubscriptionType.Shared).receiverQueueSize(1).subscribe();
      Consumer<byte[]> two =
          consumer(topic).subscriptionType(SubscriptionType.Shared).receiverQueueSize(1).subscribe();
      send(topic, 10);
      int first = drain(one, 1);
      int second = drain(two, 1);
      check(first == 1 && second == 1, first + " and " + second);
    });
    run("several topics", topic -> {
      Consumer<byte[]> consumer = client.newConsumer().topics(List.of(topic + "-1", topic + "-2"))
          .subscriptionName("s").subscribe();
      producer(topic + "-1").create().send(bytes("x"));
      next(consumer, "x");
      producer(topic + "-2").create().send(bytes("y"));
      next(consumer, "y");
    });
    run("initial position", topic -> {
      send(topic, 1);
      next(consumer(topic).subscribe(), "0");
      Consumer<byte[]> late = consumer(topic).subscriptionName("late")
          .subscriptionInitialPosition(SubscriptionInitialPosition.Latest).subscribe();
      check(late.receive(200, TimeUnit.MILLISECONDS) == null, "an old message");
    });
    run("subscription without a cursor", topic -> {
      consumer(topic).subscriptionMode(SubscriptionMode.NonDurable).subscribe().close();
      send(topic, 1);
      check(!get("/persistent/public/default/" + local(topic) + "/subscriptions").contains("s"),
          "the subscription is there");
    });
    run("subscription properties", topic -> {
      consumer(topic).subscriptionProperties(Map.of("team", "billing")).subscribe();
      check(get("/persistent/public/default/" + local(topic) + "/subscription/s/properties")
          .contains("billing"), "no properties");
    });
    run("unsubscribe", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      consumer.unsubscribe();
      check(get("/persistent/public/default/" + local(topic) + "/subscriptions").equals("[]"), "");
    });
    run("unsubscribe by force", topic -> {
      Consumer<byte[]> one =
          consumer(topic).subscriptionType(SubscriptionType.Shared).subscribe();
      consumer(topic).subscriptionType(SubscriptionType.Shared).subscribe();
      refused(PulsarClientException.class, () -> one.unsubscribe());
      one.unsubscribe(true);
    });
    run("pause and resume", topic -> {
      Consumer<byte[]> consumer = consumer(topic).receiverQueueSize(1).subscribe();
      consumer.pause();
      send(topic, 5);
      while (consumer.receive(300, TimeUnit.MILLISECONDS) != null) {}
      consumer.resume();
      check(consumer.receive(PATIENCE_S, TimeUnit.SECONDS) != null, "nothing comes");
    });
    run("message listener", topic -> {
      BlockingQueue<String> events = new LinkedBlockingQueue<>();
      consumer(topic).messageListener((c, m) -> events.add(new String(m.getData()))).subscribe();
      send(topic, 1);
      expect(events, "0");
    });
    run("batch receive", topic -> {
      Consumer<byte[]> consumer = consumer(topic)
          .batchReceivePolicy(BatchReceivePolicy.builder().maxNumMessages(5)
              .timeout(PATIENCE_S, TimeUnit.SECONDS).build()).subscribe();
      send(topic, 5);
      Messages<byte[]> got = consumer.batchReceive();
      check(got.size() == 5, "" + got.size());
      consumer.acknowledge(got);
    });
    run("consumer statistics", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      send(topic, 3);
      drain(consumer, 3);
      until(() -> consumer.getStats().getTotalMsgsReceived() == 3);
    });
    run("interceptors", topic -> {
      AtomicInteger seen = new AtomicInteger();
      Consumer<byte[]> consumer = consumer(topic).intercept(counting(seen)).subscribe();
      send(topic, 2);
      drain(consumer, 2);
      check(seen.get() == 4, "" + seen.get());
    });
    run("end of a terminated topic", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      Producer<byte[]> producer = producer(topic).create();
      producer.send(bytes("0"));
      post("/persistent/public/default/" + local(topic) + "/terminate");
      consumer.acknowledge(next(consumer, "0"));
      until(() -> consumer.hasReachedEndOfTopic());
      refused(PulsarClientException.class, () -> producer.send(bytes("1")));
    });
  }

  private static void acknowledgements() {
    run("individual acknowledgement", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      send(topic, 3);
      List<Message<byte[]>> got = take(consumer, 3);
      consumer.acknowledge(got.get(1));
      consumer.close();
      Consumer<byte[]> again = consumer(topic).subscribe();
      next(again, "0");
      next(again, "2");
    });
    run("cumulative acknowledgement", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      send(topic, 3);
      consumer.acknowledgeCumulative(take(consumer, 3).get(1));
      consumer.close();
      next(consumer(topic).subscribe(), "2");
    });
    run("batch-index acknowledgement", topic -> {
      Consumer<byte[]> consumer = consumer(topic).enableBatchIndexAcknowledgment(true).subscribe();
      sendBatch(topic, 4);
      List<Message<byte[]>> got = take(consumer, 4);
      consumer.acknowledge(got.get(0));
      consumer.acknowledge(got.get(2));
      consumer.close();
      Consumer<byte[]> again = consumer(topic).enableBatchIndexAcknowledgment(true).subscribe();
      next(again, "1");
      next(again, "3");
    });
    run("acknowledgement with receipt", topic -> {
      Consumer<byte[]> consumer = consumer(topic).isAckReceiptEnabled(true).subscribe();
      send(topic, 1);
      consumer.acknowledgeAsync(take(consumer, 1).get(0)).get(PATIENCE_S, TimeUnit.SECONDS);
    });
    run("transactions are refused", topic -> refused(Exception.class, () -> {
      try (PulsarClient other = PulsarClient.builder().serviceUrl(url).enableTransaction(true)
          .operationTimeout(5, TimeUnit.SECONDS).build()) {
        other.newTransaction().build().get(PATIENCE_S, TimeUnit.SECONDS);
      }
    }));
    run("negative acknowledgement", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscriptionType(SubscriptionType.Shared)
          .negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS).subscribe();
      send(topic, 1);
      consumer.negativeAcknowledge(next(consumer, "0"));
      check(next(consumer, "0").getRedeliveryCount() == 1, "another count");
    });
    run("acknowledgement timeout", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscriptionType(SubscriptionType.Shared)
          .ackTimeout(1, TimeUnit.SECONDS).ackTimeoutTickTime(100, TimeUnit.MILLISECONDS)
          .subscribe();
      send(topic, 1);
      next(consumer, "0");
      next(consumer, "0");
    });
    run("redeliver unacknowledged", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      send(topic, 2);
      drain(consumer, 2);
      consumer.redeliverUnacknowledgedMessages();
      next(consumer, "0");
    });
  }

  private static void places() {
    run("seek by id", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      List<MessageId> ids = send(topic, 5);
      drain(consumer, 5);
      consumer.seek(ids.get(2));
      next(consumer, "3");
      consumer.seek(MessageId.earliest);
      next(consumer, "0");
    });
    run("seek by id, inclusive", topic -> {
      Consumer<byte[]> consumer = consumer(topic).startMessageIdInclusive().subscribe();
      List<MessageId> ids = send(topic, 5);
      consumer.seek(ids.get(2));
      next(consumer, "2");
    });
    run("seek by time", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      send(topic, 3);
      Thread.sleep(50);
      long now = System.currentTimeMillis();
      Thread.sleep(50);
      producer(topic).create().send(bytes("new"));
      consumer.seek(now);
      next(consumer, "new");
    });
    run("seek by function", topic -> {
      Consumer<byte[]> consumer = consumer(topic).startMessageIdInclusive().subscribe();
      List<MessageId> ids = send(topic, 5);
      consumer.seek(name -> ids.get(3));
      next(consumer, "3");
    });
    run("reader", topic -> {
      List<MessageId> ids = send(topic, 5);
      Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(ids.get(1)).create();
      String found = "";
      while (reader.hasMessageAvailable()) {
        found += new String(reader.readNext(PATIENCE_S, TimeUnit.SECONDS).getData());
      }
      check(found.equals("234"), found);
      reader.seek(ids.get(3));
      check(new String(reader.readNext(PATIENCE_S, TimeUnit.SECONDS).getData()).equals("4"), "seek");
    });
    run("reader of several topics", topic -> {
      send(topic + "-1", 1);
      send(topic + "-2", 1);
      Reader<byte[]> reader = client.newReader().topics(List.of(topic + "-1", topic + "-2"))
          .startMessageId(MessageId.earliest).create();
      int count = 0;
      while (reader.hasMessageAvailable()) {
        reader.readNext(PATIENCE_S, TimeUnit.SECONDS);
        count++;
      }
      check(count == 2, "" + count);
    });
    run("reader from a time on", topic -> {
      send(topic, 2);
      Reader<byte[]> reader = client.newReader().topic(topic)
          .startMessageFromRollbackDuration(1, TimeUnit.HOURS).create();
      check(new String(reader.readNext(PATIENCE_S, TimeUnit.SECONDS).getData()).equals("0"), "");
    });
    run("last message id", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      MessageId last = send(topic, 3).get(2);
      check(consumer.getLastMessageIds().get(0).compareTo(last) == 0, "another id");
    });
  }

  private static void others() {
    run("partitions of a topic", topic -> {
      put("/persistent/public/default/" + local(topic) + "/partitions", "3");
      check(client.getPartitionsForTopic(topic).get().size() == 3, "another number");
    });
    run("topic that does not exist", topic -> {
      refused(PulsarClientException.class,
          () -> client.newProducer().topic("persistent://public/nowhere/x").create());
      refused(PulsarClientException.class, () -> client.newConsumer()
          .topic("persistent://public/nowhere/x").subscriptionName("s").subscribe());
    });
    run("reconnect after an unload", topic -> {
      Consumer<byte[]> consumer = consumer(topic).subscribe();
      Producer<byte[]> producer = producer(topic).create();
      producer.send(bytes("0"));
      put("/persistent/public/default/" + local(topic) + "/unload", "");
      producer.send(bytes("1"));
      Set<String> got = new TreeSet<>();
      while (got.size() < 2) {
        got.add(new String(consumer.receive(PATIENCE_S, TimeUnit.SECONDS).getData()));
      }
    });
    run("lookup over HTTP", topic -> {
      try (PulsarClient other = PulsarClient.builder().serviceUrl(admin).build()) {
        other.newProducer().topic(topic).create().send(bytes("x"));
      }
    });
  }

  // -- what the operations share

  private static void run(String name, Work work) {
    String result = "ok";
    try {
      work.run("persistent://public/default/java-" + name.replaceAll("[^a-z]+", "-"));
    } catch (Throwable error) {
      result = error.toString().replace('\n', ' ');
    }
    System.out.println(name + ": " + result);
    System.out.flush();
  }

  private static void check(boolean good, String found) {
    if (!good) {
      throw new IllegalStateException(found);
    }
  }

  private interface Condition {
    boolean holds() throws Exception;
  }

  private static void until(Condition condition) throws Exception {
    for (int i = 0; i < 20 * PATIENCE_S && !condition.holds(); i++) {
      Thread.sleep(50);
    }
    check(condition.holds(), "it never happens");
  }

  private interface Act {
    void run() throws Exception;
  }

  private static void refused(Class<? extends Exception> kind, Act act) throws Exception {
    try {
      act.run();
    } catch (Exception error) {
      if (kind.isInstance(error)) {
        return;
      }
      throw error;
    }
    throw new IllegalStateException("it was not refused");
  }

  private static byte[] bytes(String text) {
    return text.getBytes();
  }

  private static String local(String topic) {
    return topic.substring(topic.lastIndexOf('/') + 1);
  }

  private static ProducerBuilder<byte[]> producer(String topic) {
    return client.newProducer().topic(topic).sendTimeout(PATIENCE_S, TimeUnit.SECONDS);
  }

  private static ConsumerBuilder<byte[]> consumer(String topic) {
    return client.newConsumer().topic(topic).subscriptionName("s")
        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
  }

  private static List<MessageId> send(String topic, int count) throws Exception {
    List<MessageId> ids = new ArrayList<>();
    try (Producer<byte[]> producer = producer(topic).enableBatching(false).create()) {
      for (int i = 0; i < count; i++) {
        ids.add(producer.send(bytes("" + i)));
      }
    }
    return ids;
  }

  private static void sendBatch(String topic, int count) throws Exception {
    try (Producer<byte[]> producer = producer(topic).enableBatching(true)
        .batchingMaxPublishDelay(1, TimeUnit.MINUTES).create()) {
      for (int i = 0; i < count; i++) {
        producer.sendAsync(bytes("" + i));
      }
      producer.flush();
    }
  }

  private static Message<byte[]> next(Consumer<byte[]> consumer, String content) throws Exception {
    Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
    check(message != null, "nothing came instead of " + content);
    String found = new String(message.getData());
    check(found.equals(content), found + " came instead of " + content);
    return message;
  }

  private static List<Message<byte[]>> take(Consumer<byte[]> consumer, int count) throws Exception {
    List<Message<byte[]>> got = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      got.add(next(consumer, "" + i));
    }
    return got;
  }

  private static int drain(Consumer<byte[]> consumer, int count) throws Exception {
    int got = 0;
    while (got < count && consumer.receive(PATIENCE_S, TimeUnit.SECONDS) != null) {
      got++;
    }
    return got;
  }

  private static Consumer<byte[]> failover(String topic, String name, BlockingQueue<String> events)
      throws Exception {
    return consumer(topic).subscriptionType(SubscriptionType.Failover).consumerName(name)
        .consumerEventListener(new ConsumerEventListener() {
          @Override
          public void becameActive(Consumer<?> consumer, int partition) {
            events.add(name + " active");
          }

          @Override
          public void becameInactive(Consumer<?> consumer, int partition) {
            events.add(name + " inactive");
          }
        }).subscribe();
  }

  private static void expect(BlockingQueue<String> events, String wanted) throws Exception {
    String found = events.poll(PATIENCE_S, TimeUnit.SECONDS);
    check(wanted.equals(found), found + " instead of " + wanted);
  }

  private static ConsumerInterceptor<byte[]> counting(AtomicInteger seen) {
    return new ConsumerInterceptor<>() {
      @Override
      public Message<byte[]> beforeConsume(Consumer<byte[]> consumer, Message<byte[]> message) {
        seen.addAndGet(2);
        return message;
      }

      @Override
      public void onAcknowledge(Consumer<byte[]> c, MessageId id, Throwable error) {}

      @Override
      public void onAcknowledgeCumulative(Consumer<byte[]> c, MessageId id, Throwable error) {}

      @Override
      public void onNegativeAcksSend(Consumer<byte[]> consumer, Set<MessageId> ids) {}

      @Override
      public void onAckTimeoutSend(Consumer<byte[]> consumer, Set<MessageId> ids) {}

      @Override
      public void close() {}
    };
  }

  private static CryptoKeyReader keys() throws Exception {
    KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
    generator.initialize(2048);
    KeyPair pair = generator.generateKeyPair();
    byte[] open = pem("PUBLIC KEY", pair.getPublic().getEncoded());
    byte[] secret = pem("PRIVATE KEY", pair.getPrivate().getEncoded());
    return new CryptoKeyReader() {
      @Override
      public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
        return new EncryptionKeyInfo(open, metadata);
      }

      @Override
      public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
        return new EncryptionKeyInfo(secret, metadata);
      }
    };
  }

  private static byte[] pem(String name, byte[] content) {
    String text = Base64.getMimeEncoder(64, bytes("\n")).encodeToString(content);
    return bytes("-----BEGIN " + name + "-----\n" + text + "\n-----END " + name + "-----\n");
  }

  private static String get(String path) throws Exception {
    return ask(HttpRequest.newBuilder(URI.create(admin + "/admin/v2" + path)).GET());
  }

  private static String put(String path, String body) throws Exception {
    HttpRequest.BodyPublisher content = HttpRequest.BodyPublishers.ofString(body);
    return ask(HttpRequest.newBuilder(URI.create(admin + "/admin/v2" + path)).PUT(content));
  }

  private static String post(String path) throws Exception {
    HttpRequest.BodyPublisher content = HttpRequest.BodyPublishers.noBody();
    return ask(HttpRequest.newBuilder(URI.create(admin + "/admin/v2" + path)).POST(content));
  }

  private static String ask(HttpRequest.Builder request) throws Exception {
    HttpResponse<String> answer = HttpClient.newHttpClient().send(
        request.header("Content-Type", "application/json").build(),
        HttpResponse.BodyHandlers.ofString());
    check(answer.statusCode() < 300, answer.statusCode() + " " + answer.body());
    return answer.body();
  }
}
