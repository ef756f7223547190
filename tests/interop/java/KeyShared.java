// Apache Pulsar's Java client sends messages with keys, and consumes them by key.
//
// Arguments: service URL, topic, "auto", "sticky" or "killed".
// It prints a line for each message that comes: consumer, ordering key, number.  With "auto" one of
// two consumers leaves with what it has not acknowledged, and another one comes.  With "sticky" it
// prints first how a consumer with overlapping ranges is refused.  With "killed" it prints "now" and
// waits for a line, before which somebody kills the broker.

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

public final class KeyShared {
  private static final int MESSAGES = 200;
  private static final int KEYS = 10;
  private static final int LEAVES_AFTER = 50;
  private static final int QUEUE_SIZE = 20; // With "killed" most messages are still with the broker.
  private static String mode;

  public static void main(String[] args) throws Exception {
    try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
      mode = args[2];
      boolean sticky = mode.equals("sticky");
      List<Consumer<byte[]>> consumers = new ArrayList<>();
      consumers.add(subscribe(client, args[1], "c0", sticky, 0, 32767));
      consumers.add(subscribe(client, args[1], "c1", sticky, 32768, 65535));
      if (sticky) {
        try {
          subscribe(client, args[1], "c2", true, 100, 200);
          System.out.println("joined");
        } catch (PulsarClientException refused) {
          System.out.println(refused.getClass().getSimpleName());
        }
      }
      send(client, args[1]);
      consume(client, args[1], consumers);
    }
    System.out.println("done");
    System.out.flush();
  }

  private static Consumer<byte[]> subscribe(
      PulsarClient client, String topic, String name, boolean sticky, int first, int last)
      throws PulsarClientException {
    return client
        .newConsumer()
        .topic(topic)
        .consumerName(name)
        .subscriptionName("keys")
        .subscriptionType(SubscriptionType.Key_Shared)
        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
        .keySharedPolicy(
            sticky
                ? KeySharedPolicy.stickyHashRange().ranges(Range.of(first, last))
                : KeySharedPolicy.autoSplitHashRange())
        .receiverQueueSize(mode.equals("killed") ? QUEUE_SIZE : 1000)
        .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
        .subscribe();
  }

  private static void send(PulsarClient client, String topic) throws PulsarClientException {
    try (Producer<byte[]> producer =
        client.newProducer().topic(topic).batcherBuilder(BatcherBuilder.KEY_BASED).create()) {
      for (int number = 0; number < MESSAGES; number++) {
        producer
            .newMessage()
            .key("key-" + number) // The ordering key decides, and not this one.
            .orderingKey(("order-" + number % KEYS).getBytes())
            .value(Integer.toString(number).getBytes())
            .sendAsync();
      }
      producer.flush();
    }
  }

  private static void consume(
      PulsarClient client, String topic, List<Consumer<byte[]>> consumers) throws Exception {
    Set<String> acknowledged = new HashSet<>();
    int received = 0;
    boolean changed = mode.equals("sticky");
    while (acknowledged.size() < MESSAGES) {
      for (Consumer<byte[]> consumer : List.copyOf(consumers)) {
        Message<byte[]> message = consumer.receive(50, TimeUnit.MILLISECONDS);
        if (message == null) {
          continue;
        }
        String number = new String(message.getData());
        System.out.println(
            consumer.getConsumerName() + " " + new String(message.getOrderingKey()) + " " + number);
        received++;
        if (!mode.equals("auto") || !consumer.getConsumerName().equals("c1")) {
          try {
            consumer.acknowledge(message);
            acknowledged.add(number);
          } catch (PulsarClientException.ConnectException lost) {
            // The consumer has no broker at this moment: the message comes again.
            continue;
          }
        }
      }
      if (changed || received <= LEAVES_AFTER) {
        continue;
      }
      changed = true;
      if (mode.equals("killed")) {
        System.out.println("now");
        System.out.flush();
        System.in.read();
      } else {
        consumers.add(subscribe(client, topic, "c2", false, 0, 0));
        consumers.remove(1).close();
      }
    }
  }
}
