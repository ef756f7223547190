// Deletes a topic of Kafka, and prints "deleted" when it is gone.
//
// Arguments: bootstrap servers, topic.

import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;

public final class KafkaDelete {
  public static void main(String[] args) throws Exception {
    try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", args[0]))) {
      admin.deleteTopics(List.of(args[1])).all().get();
      while (admin.listTopics().names().get().contains(args[1])) {
        Thread.sleep(20);
      }
    }
    System.out.println("deleted");
  }
}
