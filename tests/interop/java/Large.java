// Apache Pulsar's Java client sends a message whose properties are too large, between two others.
//
// Arguments: service URL, topic.  A line for each message: "stored", or the name of its error.

import java.util.List;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;

public final class Large {
  public static void main(String[] args) throws Exception {
    try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
        Producer<byte[]> producer =
            client.newProducer().topic(args[1]).enableBatching(false).create()) {
      for (int size : List.of(1, 2 << 20, 1)) {
        try {
          producer.newMessage().property("large", "x".repeat(size)).value(new byte[1]).send();
          System.out.println("stored");
        } catch (PulsarClientException error) {
          System.out.println(error.getClass().getSimpleName());
        }
        System.out.flush();
      }
    }
  }
}
