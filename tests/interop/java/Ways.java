// Apache Pulsar's Java client, with the credentials that each request names.
//
// Each line of the input is a request: fields `key=value`, separated by tabs.  The field `do` names
// the method that serves it, the others say where the brokers are and who the client is (`client`).
// The answer is one line: "ok" and what was found, or "refused" with the class of the exception and
// its text.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

public final class Ways {
  static final int PATIENCE_S = 120;

  public static final class Reading {
    public String sensor;
    public int value;
  }

  private final Map<String, String> fields;
  private final AtomicInteger supplied = new AtomicInteger();

  private Ways(Map<String, String> fields) {
    this.fields = fields;
  }

  public static void main(String[] args) throws Exception {
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    String line;
    while ((line = lines.readLine()) != null) {
      Map<String, String> fields = new HashMap<>();
      for (String field : line.split("\t")) {
        String[] pair = field.split("=", 2);
        fields.put(pair[0], pair[1]);
      }
      String answer;
      try {
        answer = "ok " + new Ways(fields).serve();
      } catch (Throwable error) {
        Throwable found = unwrapped(error);
        answer = "refused " + found.getClass().getSimpleName() + " " + found.getMessage();
      }
      System.out.println(answer.replaceAll("\\s+", " ").strip());
      System.out.flush();
    }
    System.exit(0);
  }

  private static Throwable unwrapped(Throwable error) {
    while ((error instanceof CompletionException || error instanceof ExecutionException)
        && error.getCause() != null) {
      error = error.getCause();
    }
    return error;
  }

  private String serve() throws Exception {
    try (PulsarClient client = client()) {
      switch (fields.get("do")) {
        case "exchange":
          return exchange(client);
        case "produce":
          return produce(client);
        case "consume":
          return consume(client);
        case "partitions":
          return partitions(client);
        case "pattern":
          return pattern(client);
        case "schema":
          return schema(client);
        case "stay":
          return stay(client);
        default:
          throw new IllegalArgumentException(fields.get("do"));
      }
    }
  }

  private PulsarClient client() throws Exception {
    ClientBuilder builder =
        PulsarClient.builder()
            .serviceUrl(fields.get("url"))
            .enableTlsHostnameVerification(!fields.containsKey("verify"))
            .allowTlsInsecureConnection("nothing".equals(fields.get("verify")))
            .operationTimeout(Integer.parseInt(fields.get("timeout")), TimeUnit.SECONDS)
            .lookupTimeout(Integer.parseInt(fields.get("timeout")), TimeUnit.SECONDS);
    if (fields.containsKey("trust_store")) {
      builder
          .useKeyStoreTls(true)
          .tlsTrustStoreType("PKCS12")
          .tlsTrustStorePath(fields.get("trust_store"))
          .tlsTrustStorePassword(fields.get("store_password"));
    } else {
      builder.tlsTrustCertsFilePath(fields.get("trusted"));
    }
    Authentication authentication = authentication();
    if (authentication != null) {
      builder.authentication(authentication);
    }
    return builder.build();
  }

  private Authentication authentication() throws Exception {
    String way = "org.apache.pulsar.client.impl.auth.";
    switch (fields.getOrDefault("auth", "none")) {
      case "none":
        return null;
      case "token":
        return AuthenticationFactory.token(fields.get("token"));
      case "file":
        return AuthenticationFactory.create(
            way + "AuthenticationToken", "file://" + fields.get("file"));
      case "supplier":
        return AuthenticationFactory.token(supplier());
      case "basic":
        return AuthenticationFactory.create(
            way + "AuthenticationBasic",
            json("userId", fields.get("user"), "password", fields.get("password")));
      case "tls":
        return AuthenticationFactory.TLS(fields.get("certificate"), fields.get("key"));
      case "store":
        return AuthenticationFactory.create(
            way + "AuthenticationKeyStoreTls",
            json(
                "keyStoreType", "PKCS12",
                "keyStorePath", fields.get("key_store"),
                "keyStorePassword", fields.get("store_password")));
      case "oauth2":
        return AuthenticationFactory.create(
            way + "oauth2.AuthenticationOAuth2",
            json(
                "type", "client_credentials",
                "issuerUrl", fields.get("issuer"),
                "audience", fields.get("audience"),
                "privateKey", "file://" + fields.get("key_file"),
                "trustCertsFilePath", fields.get("issuer_trusted")));
      default:
        throw new IllegalArgumentException(fields.get("auth"));
    }
  }

  /** Reads the token from a file each time, as an application does that fetches tokens. */
  private Supplier<String> supplier() {
    Path file = Path.of(fields.get("file"));
    return () -> {
      supplied.incrementAndGet();
      try {
        return Files.readString(file).strip();
      } catch (java.io.IOException error) {
        throw new RuntimeException(error);
      }
    };
  }

  private static String json(String... pairs) {
    List<String> found = new ArrayList<>();
    for (int i = 0; i < pairs.length; i += 2) {
      found.add('"' + pairs[i] + "\":\"" + pairs[i + 1] + '"');
    }
    return "{" + String.join(",", found) + "}";
  }

  /** Sends to each topic and receives: the brokers of all of them let the client in. */
  private String exchange(PulsarClient client) throws Exception {
    int count = 0;
    for (String topic : fields.get("topics").split(",")) {
      try (Consumer<byte[]> consumer =
              client
                  .newConsumer()
                  .topic(topic)
                  .subscriptionName(fields.get("subscription"))
                  .subscribe();
          Producer<byte[]> producer =
              client.newProducer().topic(topic).enableBatching(false).create()) {
        for (int size : List.of(1, 20_000, 100_000)) {
          byte[] body = "x".repeat(size).getBytes();
          producer.send(body);
          Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
          if (message == null || message.getValue().length != size) {
            throw new IllegalStateException("another message came: " + message);
          }
          consumer.acknowledge(message);
          count++;
        }
      }
    }
    return count + " messages";
  }

  private String produce(PulsarClient client) throws Exception {
    try (Producer<byte[]> producer = client.newProducer().topic(fields.get("topic")).create()) {
      producer.send("x".getBytes());
      return "stored";
    }
  }

  private String consume(PulsarClient client) throws Exception {
    try (Consumer<byte[]> consumer =
        client
            .newConsumer()
            .topic(fields.get("topic"))
            .subscriptionName(fields.get("subscription"))
            .subscribe()) {
      return "subscribed";
    }
  }

  /** Sends ten messages to a topic with partitions, and receives them. */
  private String partitions(PulsarClient client) throws Exception {
    String topic = fields.get("topic");
    int partitions = client.getPartitionsForTopic(topic).get().size();
    try (Consumer<byte[]> consumer =
            client
                .newConsumer()
                .topic(topic)
                .subscriptionName(fields.get("subscription"))
                .subscribe();
        Producer<byte[]> producer =
            client.newProducer().topic(topic).enableBatching(false).create()) {
      for (int i = 0; i < 10; i++) {
        producer.send(new byte[] {(byte) i});
      }
      return partitions + " partitions, " + received(consumer, 10).size() + " messages";
    }
  }

  /** Receives what the topics of a pattern hold. */
  private String pattern(PulsarClient client) throws Exception {
    try (Consumer<byte[]> consumer =
        client
            .newConsumer()
            .topicsPattern(Pattern.compile(fields.get("pattern")))
            .subscriptionName(fields.get("subscription"))
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .subscribe()) {
      Set<String> topics = new TreeSet<>();
      for (Message<byte[]> message : received(consumer, Integer.parseInt(fields.get("count")))) {
        topics.add(message.getTopicName().replaceAll(".*/", ""));
      }
      return String.join(" ", topics);
    }
  }

  private static List<Message<byte[]>> received(Consumer<byte[]> consumer, int count)
      throws PulsarClientException {
    List<Message<byte[]>> found = new ArrayList<>();
    while (found.size() < count) {
      Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
      if (message == null) {
        throw new IllegalStateException("only " + found.size() + " messages came");
      }
      consumer.acknowledge(message);
      found.add(message);
    }
    return found;
  }

  /** Registers a schema by sending, and reads with it. */
  private String schema(PulsarClient client) throws Exception {
    try (Consumer<Reading> consumer =
            client
                .newConsumer(Schema.JSON(Reading.class))
                .topic(fields.get("topic"))
                .subscriptionName(fields.get("subscription"))
                .subscribe();
        Producer<Reading> producer =
            client.newProducer(Schema.JSON(Reading.class)).topic(fields.get("topic")).create()) {
      Reading reading = new Reading();
      reading.sensor = "s";
      reading.value = 7;
      producer.send(reading);
      Message<Reading> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
      return message.getValue().sensor + " " + message.getValue().value;
    }
  }

  /**
   * Sends and receives for some seconds.  Says how many messages were sent, which came and which
   * failed, by the class of the exception, and how often the supplier was asked.
   */
  private String stay(PulsarClient client) throws Exception {
    Map<String, Integer> failed = new TreeMap<>();
    Set<Integer> stored = new TreeSet<>();
    Set<Integer> got = new TreeSet<>();
    int serial = 0;
    int repeated = 0;
    try (Consumer<byte[]> consumer =
            client
                .newConsumer()
                .topic(fields.get("topic"))
                .subscriptionName(fields.get("subscription"))
                .subscribe();
        Producer<byte[]> producer =
            client
                .newProducer()
                .topic(fields.get("topic"))
                .enableBatching(false)
                .sendTimeout(Integer.parseInt(fields.get("timeout")), TimeUnit.SECONDS)
                .create()) {
      long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds());
      while (System.nanoTime() < until) {
        int number = serial++;
        try {
          producer.send(Integer.toString(number).getBytes());
          stored.add(number);
        } catch (PulsarClientException error) {
          failed.merge(error.getClass().getSimpleName(), 1, Integer::sum);
          break; // The producer does not recover without other credentials.
        }
        repeated += take(consumer, got, 20);
      }
      while (failed.isEmpty() && !got.containsAll(stored)) {
        int before = got.size();
        repeated += take(consumer, got, 10_000);
        if (got.size() == before) {
          break;
        }
      }
      return "stored=" + stored.size() + " received=" + got.size() + " repeated=" + repeated
          + " failed=" + failed + " supplied=" + supplied;
    }
  }

  private int seconds() {
    return Integer.parseInt(fields.get("seconds"));
  }

  /** Takes one message; returns 1 if it has come before. */
  private static int take(Consumer<byte[]> consumer, Set<Integer> got, int patienceMs)
      throws PulsarClientException {
    Message<byte[]> message = consumer.receive(patienceMs, TimeUnit.MILLISECONDS);
    if (message == null) {
      return 0;
    }
    boolean fresh = got.add(Integer.parseInt(new String(message.getValue())));
    consumer.acknowledge(message);
    return fresh ? 0 : 1;
  }
}
