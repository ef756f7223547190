// Apache Pulsar's classes read the statistics of a topic, as its admin client does.
//
// Arguments: service URL, admin URL, topic.  The topic gets a batch of three messages and a
// subscription with a consumer.

import java.io.InputStream;
import java.net.URI;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.common.policies.data.PersistentTopicInternalStats;
import org.apache.pulsar.common.policies.data.TopicStats;
import org.apache.pulsar.common.util.ObjectMapperFactory;

public final class Stats {
  public static void main(String[] args) throws Exception {
    String path = args[1] + "/admin/v2/persistent/public/default/" + args[2];
    try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
        Consumer<byte[]> consumer =
            client.newConsumer().topic(args[2]).subscriptionName("sub").subscribe();
        Producer<byte[]> producer =
            client
                .newProducer()
                .topic(args[2])
                .batchingMaxPublishDelay(1, TimeUnit.MINUTES)
                .create()) {
      for (int i = 0; i < 3; i++) {
        producer.sendAsync(new byte[1]);
      }
      producer.flush();
      consumer.receive();
      TopicStats stats = read(path + "/stats", TopicStats.class);
      var found = stats.getSubscriptions().get("sub");
      System.out.println(
          "backlog "
              + found.getMsgBacklog()
              + " messages, "
              + found.getConsumers().get(0).getAvgMessagesPerEntry()
              + " a batch");
      var internal = read(path + "/internalStats", PersistentTopicInternalStats.class);
      System.out.println(
          "cursor sub ranges " + internal.cursors.get("sub").individuallyDeletedMessages);
      System.out.flush();
    }
    System.exit(0);
  }

  private static <T> T read(String url, Class<T> kind) throws Exception {
    try (InputStream body = URI.create(url).toURL().openStream()) {
      return ObjectMapperFactory.getMapper().reader().forType(kind).readValue(body);
    }
  }
}
