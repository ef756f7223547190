// Apache Pulsar's Java client consumes topics and partitions that come while it consumes.
//
// Arguments: service URL, subscription, number of messages, and a topic or an expression of topics.
// With an expression, the client never asks for the list by itself again: it only hears of new topics
// from its watcher.  With a topic, it asks for new partitions once a second.  The client prints
// "ready" when it has subscribed, and then a line for each message: its topic and its content.

import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.naming.TopicName;

public final class Patterns {
  public static void main(String[] args) throws Exception {
    try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
      ConsumerBuilder<byte[]> builder =
          client.newConsumer().subscriptionName(args[1]).subscriptionType(SubscriptionType.Shared);
      if (args[3].contains("*")) {
        builder.topicsPattern(args[3]).patternAutoDiscoveryPeriod(10, TimeUnit.HOURS);
        builder.autoUpdatePartitions(false);
        builder.subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
      } else {
        builder.topic(args[3]).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS);
      }
      try (Consumer<byte[]> consumer = builder.subscribe()) {
        System.out.println("ready");
        System.out.flush();
        for (int number = 0; number < Integer.parseInt(args[2]); number++) {
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
}
