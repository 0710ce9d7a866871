import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts words with Kafka Streams, exactly once: a repartition topic, a state store with its changelog, a transaction per
 * commit. Arguments: bootstrap servers, state directory, input topic, output topic. Runs until it is killed.
 */
public class WordCount {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("state.dir", arguments[1]);
        settings.put("application.id", "word-count");
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", 200);
        settings.put("num.stream.threads", 2);
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("consumer.session.timeout.ms", 10000);
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[2])
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word)
            .count(Materialized.as("counts"))
            .toStream()
            .to(arguments[3], Produced.with(Serdes.String(), Serdes.Long()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> System.out.println(before + " -> " + now));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace(System.out);
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
    }
}
