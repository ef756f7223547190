// Apache Pulsar's Java client, while its topic moves from broker to broker.
//
// Arguments: service URL, topic, number of messages.  It says "sending" when some are stored, and in
// the end how many were stored, failed, and were received, and how many of these differ.

import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

public final class Moves {
  public static void main(String[] args) throws Exception {
    int wanted = Integer.parseInt(args[2]);
    AtomicInteger stored = new AtomicInteger();
    AtomicInteger failed = new AtomicInteger();
    try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
        Consumer<byte[]> consumer =
            client.newConsumer().topic(args[1]).subscriptionName("sub").subscribe();
        Producer<byte[]> producer =
            client.newProducer().topic(args[1]).producerName("java").create()) {
      Thread sending =
          new Thread(
              () -> {
                for (int number = 0; number < wanted; number++) {
                  producer
                      .sendAsync(Integer.toString(number).getBytes())
                      .whenComplete(
                          (id, error) -> {
                            if (error != null) {
                              failed.incrementAndGet();
                            } else if (stored.incrementAndGet() == 10) {
                              say("sending");
                            }
                          });
                  pause();
                }
              });
      sending.start();
      Set<String> seen = new HashSet<>();
      int received = 0;
      while (seen.size() + failed.get() < wanted) {
        Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
        if (message == null) {
          break;
        }
        received++;
        seen.add(new String(message.getValue()));
        consumer.acknowledge(message);
      }
      sending.join();
      producer.flush();
      say(
          "stored " + stored.get() + " failed " + failed.get() + " received " + received
              + " distinct " + seen.size());
    }
  }

  private static void pause() {
    try {
      Thread.sleep(5);
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  private static synchronized void say(String line) {
    System.out.println(line);
    System.out.flush();
  }
}
