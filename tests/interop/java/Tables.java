// Apache Pulsar's Java client with a compacted topic.  TOPIC is a full name: a table view takes a
// short one for that of a topic that is not persistent, and does not read it from its begin.
//
// Tables put URL TOPIC BATCHING FIRST COUNT   messages FIRST to FIRST+COUNT-1 with the keys k0 to
//                                             k9 in turn; the last one removes its key
// Tables read URL TOPIC                       what a reader, a consumer and a table view have

import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;

public final class Tables {
  private static final int KEYS = 10;

  public static void main(String[] args) throws Exception {
    try (PulsarClient client = PulsarClient.builder().serviceUrl(args[1]).build()) {
      if (args[0].equals("put")) {
        int first = Integer.parseInt(args[4]);
        put(client, args[2], args[3].equals("true"), first, Integer.parseInt(args[5]));
      } else {
        read(client, args[2]);
      }
    }
    System.exit(0);
  }

  private static void put(PulsarClient client, String topic, boolean batching, int first, int count)
      throws Exception {
    try (Producer<byte[]> producer =
        client
            .newProducer(Schema.BYTES)
            .topic(topic)
            .enableBatching(batching)
            .batchingMaxPublishDelay(1, TimeUnit.SECONDS)
            .batchingMaxMessages(25)
            .compressionType(CompressionType.ZSTD)
            .create()) {
      for (int number = first; number < first + count; number++) {
        boolean last = number == first + count - 1;
        byte[] value = last ? null : Integer.toString(number).getBytes();
        producer.newMessage().key("k" + number % KEYS).value(value).sendAsync();
      }
      producer.flush();
    }
    System.out.println("put");
  }

  private static void read(PulsarClient client, String topic) throws Exception {
    List<String> read = new ArrayList<>();
    try (Reader<byte[]> reader =
        client
            .newReader(Schema.BYTES)
            .topic(topic)
            .startMessageId(MessageId.earliest)
            .readCompacted(true)
            .create()) {
      while (reader.hasMessageAvailable()) {
        read.add(shown(reader.readNext(30, TimeUnit.SECONDS)));
      }
    }
    System.out.println("reader " + String.join(" ", read));
    List<String> consumed = new ArrayList<>();
    try (Consumer<byte[]> consumer =
        client
            .newConsumer(Schema.BYTES)
            .topic(topic)
            .subscriptionName("java")
            .subscriptionType(SubscriptionType.Failover)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .readCompacted(true)
            .subscribe()) {
      for (int i = 0; i < read.size(); i++) {
        Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
        consumed.add(shown(message));
        consumer.acknowledge(message);
      }
      consumer.close();
    }
    System.out.println("consumer " + String.join(" ", consumed));
    try (TableView<byte[]> view =
        client.newTableView(Schema.BYTES).topic(topic).create()) {
      List<String> table = new ArrayList<>();
      TreeMap<String, byte[]> sorted = new TreeMap<>();
      view.forEach(sorted::put);
      sorted.forEach((key, value) -> table.add(key + "=" + new String(value)));
      System.out.println("table " + String.join(" ", table));
    }
  }

  private static String shown(Message<byte[]> message) {
    return message.getKey() + "=" + (message.size() == 0 ? "" : new String(message.getData()));
  }
}
