// Apache Pulsar's Java client with schemas of all kinds.
//
// Arguments: service URL, prefix of the topics.  Each line says what a step has found.

import com.google.protobuf.Duration;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

public final class Schemas {
  public static class User {
    public String name;
    public int age;
  }

  public static class UserWithTown {
    public String name;
    public int age;
    public String town;
  }

  public static class Other {
    public int name;
    public long size;
  }

  private static PulsarClient client;
  private static String prefix;

  public static void main(String[] args) throws Exception {
    client = PulsarClient.builder().serviceUrl(args[0]).build();
    prefix = args[1];
    say("string " + roundTrip("string", Schema.STRING, "häuser"));
    say("int64 " + roundTrip("int64", Schema.INT64, 1L << 40));
    say("double " + roundTrip("double", Schema.DOUBLE, 0.5));
    say("bool " + roundTrip("bool", Schema.BOOL, true));
    say("date " + roundTrip("instant", Schema.INSTANT, java.time.Instant.ofEpochSecond(5)));
    say("json " + shown(roundTrip("json", Schema.JSON(User.class), user("ann", 1))));
    say("avro " + shown(roundTrip("avro", Schema.AVRO(User.class), user("bob", 2))));
    Duration duration = Duration.newBuilder().setSeconds(7).setNanos(9).build();
    say("protobuf " + roundTrip("protobuf", Schema.PROTOBUF(Duration.class), duration).getNanos());
    Schema<Duration> nativeSchema = Schema.PROTOBUF_NATIVE(Duration.class);
    say("native " + roundTrip("protobuf-native", nativeSchema, duration).getNanos());
    for (KeyValueEncodingType type : KeyValueEncodingType.values()) {
      Schema<KeyValue<String, User>> pairs =
          Schema.KeyValue(Schema.STRING, Schema.AVRO(User.class), type);
      KeyValue<String, User> pair =
          roundTrip("pairs-" + type, pairs, new KeyValue<>("k", user("cy", 3)));
      say("pair " + type + " " + pair.getKey() + " " + shown(pair.getValue()));
    }
    autoConsume();
    autoProduce();
    incompatible();
    versions();
    client.close();
  }

  private static <T> T roundTrip(String name, Schema<T> schema, T value) throws Exception {
    try (Consumer<T> consumer = subscribe(name, "trip", schema);
        Producer<T> producer = producer(name, schema)) {
      producer.send(value);
      return consumer.receive(20, TimeUnit.SECONDS).getValue();
    }
  }

  private static void autoConsume() throws Exception {
    try (Consumer<GenericRecord> consumer = subscribe("avro", "auto", Schema.AUTO_CONSUME())) {
      Message<GenericRecord> message = consumer.receive(20, TimeUnit.SECONDS);
      GenericRecord record = message.getValue();
      say("auto " + record.getField("name") + " " + record.getField("age"));
    }
  }

  private static void autoProduce() throws Exception {
    byte[] encoded = Schema.AVRO(User.class).encode(user("dee", 4));
    try (Consumer<User> consumer = subscribe("avro", "auto-produce", Schema.AVRO(User.class));
        Producer<byte[]> producer = producer("avro", Schema.AUTO_PRODUCE_BYTES())) {
      producer.send(encoded);
      consumer.receive(20, TimeUnit.SECONDS);
      say("auto bytes " + shown(consumer.receive(20, TimeUnit.SECONDS).getValue()));
      try {
        producer.send(new byte[0]);
        say("auto bytes sent what is no record");
      } catch (Exception refused) {
        say("auto bytes checked");
      }
    }
    try (Consumer<byte[]> consumer = subscribe("plain", "auto-produce", Schema.BYTES);
        Producer<byte[]> producer = producer("plain", Schema.AUTO_PRODUCE_BYTES())) {
      producer.send("x".getBytes(StandardCharsets.UTF_8));
      say("auto plain " + new String(consumer.receive(20, TimeUnit.SECONDS).getValue()));
    }
  }

  private static void incompatible() throws Exception {
    try (Producer<Other> producer = producer("avro", Schema.AVRO(Other.class))) {
      say("incompatible producer admitted");
    } catch (PulsarClientException error) {
      say("producer " + error.getClass().getSimpleName());
    }
    try (Consumer<Other> consumer = subscribe("avro", "other", Schema.AVRO(Other.class))) {
      say("incompatible consumer admitted");
    } catch (PulsarClientException error) {
      say("consumer " + error.getClass().getSimpleName());
    }
    try (Producer<String> producer = producer("avro", Schema.STRING)) {
      say("another type admitted");
    } catch (PulsarClientException error) {
      say("type " + error.getClass().getSimpleName());
    }
  }

  private static void versions() throws Exception {
    try (Producer<User> old = producer("versions", Schema.AVRO(User.class));
        Producer<UserWithTown> young = producer("versions", Schema.AVRO(UserWithTown.class))) {
      old.send(user("eve", 5));
      UserWithTown moved = new UserWithTown();
      moved.name = "eve";
      moved.age = 6;
      moved.town = "Rome";
      young.send(moved);
      old.newMessage(Schema.AVRO(UserWithTown.class)).value(moved).send();
    }
    List<String> found = new ArrayList<>();
    try (Consumer<UserWithTown> consumer =
        subscribe("versions", "typed", Schema.AVRO(UserWithTown.class))) {
      for (int i = 0; i < 3; i++) {
        Message<UserWithTown> message = consumer.receive(20, TimeUnit.SECONDS);
        found.add(message.getSchemaVersion()[7] + ":" + message.getValue().town);
      }
    }
    say("versions " + String.join(" ", found));
  }

  private static <T> Consumer<T> subscribe(String topic, String name, Schema<T> schema)
      throws Exception {
    return client
        .newConsumer(schema)
        .topic(prefix + topic)
        .subscriptionName(name)
        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
        .subscribe();
  }

  private static <T> Producer<T> producer(String topic, Schema<T> schema) throws Exception {
    return client.newProducer(schema).topic(prefix + topic).create();
  }

  private static User user(String name, int age) {
    User user = new User();
    user.name = name;
    user.age = age;
    return user;
  }

  private static String shown(User user) {
    return user.name + " " + user.age;
  }

  private static void say(String text) {
    System.out.println(text);
    System.out.flush();
  }
}
