import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Produces to one partition and consumes from it, with the defaults of Java's clients, until standard input ends.
 *
 * <p>Prints a line for each record that is acknowledged ("java-produce") or read ("java-consume"): the kind, the
 * monotonic time in nanoseconds, and the value.
 */
public class FailoverClients {
  private static final AtomicBoolean ENDS = new AtomicBoolean();

  private static synchronized void say(String kind, String value) {
    System.out.println(kind + " " + System.nanoTime() + " " + value);
  }

  private static void produce(String bootstrap, TopicPartition place, String prefix) {
    Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
    try (var producer =
        new KafkaProducer<String, String>(settings, new StringSerializer(), new StringSerializer())) {
      for (int number = 0; !ENDS.get(); number++) {
        String value = prefix + number;
        producer.send(
            new ProducerRecord<>(place.topic(), place.partition(), null, value),
            (metadata, error) -> {
              if (error == null) {
                say("java-produce", value);
              }
            });
        Thread.sleep(5);
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private static void consume(String bootstrap, TopicPartition place) {
    Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
    try (var consumer =
        new KafkaConsumer<String, String>(settings, new StringDeserializer(), new StringDeserializer())) {
      consumer.assign(List.of(place));
      consumer.seekToEnd(List.of(place));
      while (!ENDS.get()) {
        for (var record : consumer.poll(Duration.ofMillis(100))) {
          say("java-consume", "-");
        }
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    String bootstrap = arguments[0];
    var place = new TopicPartition(arguments[1], Integer.parseInt(arguments[2]));
    var producing = new Thread(() -> produce(bootstrap, place, arguments[3]));
    var consuming = new Thread(() -> consume(bootstrap, place));
    producing.start();
    consuming.start();
    while (System.in.read() >= 0) {
      // only the end of the stream counts
    }
    ENDS.set(true);
    producing.join();
    consuming.join();
  }
}
