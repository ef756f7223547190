// Creates a topic of Kafka if it does not exist, and sends messages to it.
//
// Arguments: bootstrap servers, topic, number of partitions.  Standard input has a line for each
// message: partition, timestamp in ms, key, value, headers, and "aborted" for a message whose
// transaction is aborted, else "sent".  Fields are separated by tabs.  Keys and values are base64,
// or "null"; headers are NAME=BASE64, separated by commas.  It prints "filled" at the end.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class KafkaFill {
  public static void main(String[] args) throws Exception {
    Map<String, Object> settings = Map.of("bootstrap.servers", args[0]);
    try (Admin admin = Admin.create(settings)) {
      NewTopic topic = new NewTopic(args[1], Integer.parseInt(args[2]), (short) 1);
      topic.configs(Map.of("retention.ms", "-1")); // Timestamps of tests are old.
      admin.createTopics(List.of(topic)).all().get();
    } catch (ExecutionException error) {
      if (!(error.getCause() instanceof TopicExistsException)) throw error;
    }
    ByteArraySerializer bytes = new ByteArraySerializer();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    try (KafkaProducer<byte[], byte[]> plain = new KafkaProducer<>(settings, bytes, bytes)) {
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        String[] fields = line.split("\t", -1);
        ProducerRecord<byte[], byte[]> record =
            new ProducerRecord<>(
                args[1],
                Integer.valueOf(fields[0]),
                Long.valueOf(fields[1]),
                decoded(fields[2]),
                decoded(fields[3]),
                headers(fields[4]));
        if (fields[5].equals("sent")) {
          plain.send(record);
        } else {
          plain.flush();
          abort(settings, record);
        }
      }
      plain.flush();
    }
    System.out.println("filled");
  }

  private static void abort(Map<String, Object> settings, ProducerRecord<byte[], byte[]> record)
      throws Exception {
    Map<String, Object> more = new java.util.HashMap<>(settings);
    more.put("transactional.id", "aborts");
    ByteArraySerializer bytes = new ByteArraySerializer();
    try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(more, bytes, bytes)) {
      producer.initTransactions();
      producer.beginTransaction();
      producer.send(record).get();
      producer.abortTransaction();
    }
  }

  private static byte[] decoded(String text) {
    return text.equals("null") ? null : Base64.getDecoder().decode(text);
  }

  private static List<Header> headers(String text) {
    List<Header> found = new ArrayList<>();
    for (String each : text.isEmpty() ? new String[0] : text.split(",")) {
      int equals = each.indexOf('=');
      String name = each.substring(0, equals);
      found.add(new RecordHeader(name, decoded(each.substring(equals + 1))));
    }
    return found;
  }
}
