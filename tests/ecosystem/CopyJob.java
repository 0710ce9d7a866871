import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Copies a topic with Flink, exactly once, and fails on its way once. Arguments: bootstrap servers, input topic, output
 * topic, directory of checkpoints, the number of the record at which it fails. Ends at the input's end.
 */
public class CopyJob {
    static volatile int seen = 0;
    static volatile boolean hasFailed = false;

    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "1s");
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", "file://" + arguments[3]);
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "50");
        settings.setString("restart-strategy.fixed-delay.delay", "500ms");
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(arguments[0])
            .setTopics(arguments[1])
            .setGroupId("copy-job")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        Properties producer = new Properties();
        producer.put("transaction.timeout.ms", "600000");
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(arguments[0])
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("copy-job")
            .setKafkaProducerConfig(producer)
            .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                .setTopic(arguments[2])
                .setValueSerializationSchema(new SimpleStringSchema())
                .build())
            .build();
        int failAt = Integer.parseInt(arguments[4]);
        flink.fromSource(source, WatermarkStrategy.noWatermarks(), "source")
            .map(slowed(failAt))
            .returns(String.class)
            .sinkTo(sink);
        flink.execute("copy");
        System.out.println("failed once: " + hasFailed + ", mapped " + seen);
        System.exit(0);
    }

    /** Slow enough for several checkpoints, and wrong once. */
    static MapFunction<String, String> slowed(int failAt) {
        return value -> {
            seen++;
            if (seen % 200 == 0) {
                Thread.sleep(200);
            }
            if (seen > failAt && !hasFailed) {
                hasFailed = true;
                throw new RuntimeException("fails on purpose");
            }
            return value;
        };
    }
}
