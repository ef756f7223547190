// Apache Pulsar's Java client with a dead letter policy and a retry policy, as applications use it.
//
// Arguments: service URL, prefix of the topics, messages to send to each of two topics, how many a
// second.  Nothing is ever acknowledged by the consumers of these topics: one gives each message
// back, the other sends it to the retry topic.  In the end all of them have to be dead letters.  A
// line a second says how many there are; the last one says "done".

import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

public final class Letters {
  private static final int ATTEMPTS = 2;
  private static final AtomicLong dead = new AtomicLong();
  private static final AtomicLong retried = new AtomicLong();
  private static final AtomicLong given = new AtomicLong();

  public static void main(String[] args) throws Exception {
    String url = args[0];
    String prefix = args[1];
    long messages = Long.parseLong(args[2]);
    long rate = Long.parseLong(args[3]);
    try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build()) {
      Consumer<byte[]> nacked = subscribe(client, prefix + "-nacked", false);
      Consumer<byte[]> later = subscribe(client, prefix + "-later", true);
      Consumer<byte[]> letters =
          client
              .newConsumer()
              .topics(java.util.List.of(prefix + "-nacked-letters", prefix + "-later-letters"))
              .subscriptionName("letters")
              .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
              .messageListener(Letters::letter)
              .subscribe();
      Thread first = start(() -> giveBack(nacked));
      Thread second = start(() -> sendLater(later));
      send(client, prefix, messages, rate);
      while (dead.get() < 2 * messages) {
        Thread.sleep(1000);
        say("");
      }
      say("done");
      first.interrupt();
      second.interrupt();
      letters.close();
    }
    System.exit(0);
  }

  private static Consumer<byte[]> subscribe(PulsarClient client, String topic, boolean retry)
      throws PulsarClientException {
    DeadLetterPolicy.DeadLetterPolicyBuilder policy =
        DeadLetterPolicy.builder()
            .maxRedeliverCount(ATTEMPTS)
            .deadLetterTopic(topic + "-letters")
            .initialSubscriptionName("kept");
    if (retry) {
      policy.retryLetterTopic(topic + "-retries");
    }
    return client
        .newConsumer(Schema.BYTES)
        .topic(topic)
        .subscriptionName("sub")
        .subscriptionType(SubscriptionType.Shared)
        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
        .negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS)
        .enableRetry(retry)
        .deadLetterPolicy(policy.build())
        .subscribe();
  }

  private static void giveBack(Consumer<byte[]> consumer) throws PulsarClientException {
    while (true) {
      Message<byte[]> message = consumer.receive();
      given.incrementAndGet();
      consumer.negativeAcknowledge(message);
    }
  }

  private static void sendLater(Consumer<byte[]> consumer) throws PulsarClientException {
    while (true) {
      Message<byte[]> message = consumer.receive();
      retried.incrementAndGet();
      consumer.reconsumeLater(message, Map.of("why", "a test"), 50, TimeUnit.MILLISECONDS);
    }
  }

  private static void letter(Consumer<byte[]> consumer, Message<byte[]> message) {
    dead.incrementAndGet();
    consumer.acknowledgeAsync(message);
  }

  private static void send(PulsarClient client, String prefix, long messages, long rate)
      throws Exception {
    Producer<byte[]> one = client.newProducer().topic(prefix + "-nacked").create();
    Producer<byte[]> two = client.newProducer().topic(prefix + "-later").create();
    for (long sent = 0; sent < messages; sent++) {
      byte[] content = ("letter " + sent).getBytes();
      one.sendAsync(content);
      two.sendAsync(content);
      if (sent % rate == rate - 1) {
        Thread.sleep(1000);
        say("");
      }
    }
    one.close();
    two.close();
  }

  private static void say(String word) {
    System.out.println(
        dead.get() + " letters " + given.get() + " given back " + retried.get() + " retried " + word);
    System.out.flush();
  }

  private interface Work {
    void run() throws PulsarClientException;
  }

  private static Thread start(Work work) {
    Thread thread =
        new Thread(
            () -> {
              try {
                work.run();
              } catch (PulsarClientException error) {
                System.err.println(error);
              }
            });
    thread.setDaemon(true);
    thread.start();
    return thread;
  }
}
