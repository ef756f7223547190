// Apache Pulsar's Java client on a topic with deduplication, as an application that starts again.
//
// Arguments: service URL, topic.  Each line says the sequence id that the producer goes on behind,
// and for each message "new" or "repeat".

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.impl.MessageIdImpl;

public final class Once {
  public static void main(String[] args) throws Exception {
    try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
      send(client, args[1], true, false, 1, 2, 3); // one batch
      send(client, args[1], true, false, 1, 2, 3); // the same one
      send(client, args[1], false, false, 2, 3, 4, 5); // each message alone
      send(client, args[1], false, true, 5, 6, 7); // in chunks
      send(client, args[1], false, true, 6, 7, 8);
    }
  }

  private static void send(
      PulsarClient client, String topic, boolean batches, boolean chunks, int... ids)
      throws Exception {
    try (Producer<byte[]> producer =
        client
            .newProducer()
            .topic(topic)
            .producerName("java")
            .enableBatching(batches)
            .batchingMaxMessages(ids.length)
            .enableChunking(chunks)
            .chunkMaxMessageSize(1000)
            .create()) {
      StringBuilder told = new StringBuilder("behind " + producer.getLastSequenceId() + ":");
      List<CompletableFuture<MessageId>> results = new ArrayList<>();
      for (int id : ids) {
        byte[] value = (chunks ? id + "," + "x".repeat(3500) : id + ",").getBytes();
        results.add(producer.newMessage().sequenceId(id).value(value).sendAsync());
      }
      producer.flush();
      for (CompletableFuture<MessageId> result : results) {
        told.append(((MessageIdImpl) result.get()).getLedgerId() < 0 ? " repeat" : " new");
      }
      System.out.println(told);
      System.out.flush();
    }
  }
}
