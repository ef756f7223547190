// Apache Pulsar's Java client consumes all topics whose names match an expression.
//
// Arguments: service URL, namespace, expression (without the namespace), number of messages.
// The client never asks for the list by itself again: it only hears of new topics from its watcher.
// It prints "ready" when the watcher is there, and then a line for each message: topic and content.

import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.naming.TopicName;

public final class Patterns {
  public static void main(String[] args) throws Exception {
    try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
        Consumer<byte[]> consumer =
            client
                .newConsumer()
                .topicsPattern("persistent://" + args[1] + "/" + args[2])
                .subscriptionName("patterns")
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .patternAutoDiscoveryPeriod(10, TimeUnit.HOURS)
                .autoUpdatePartitions(false)
                .subscribe()) {
      System.out.println("ready");
      System.out.flush();
      for (int number = 0; number < Integer.parseInt(args[3]); number++) {
        Message<byte[]> message = consumer.receive();
        System.out.println(
            TopicName.get(message.getTopicName()).getLocalName()
                + " "
                + new String(message.getData()));
        System.out.flush();
        consumer.acknowledge(message);
      }
    }
  }
}
