// A member of a group of the consumer protocol by Kafka's Java client: `java JavaMember.java SERVERS GROUP TOPIC`.
//
// It subscribes to a pattern, which the coordinator matches, and commits after each poll. SIGTERM lets it leave.
// `programs.py` has the lines that it prints.

import java.time.Duration;
import java.util.Collection;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;

public class JavaMember {
    public static void main(String[] words) throws Exception {
        var settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("group.id", words[1]);
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        var consumer = new KafkaConsumer<String, String>(settings);
        var main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }));
        consumer.subscribe(new SubscriptionPattern("^(?:" + words[2] + ")$"), new Prints());
        try {
            while (true) {
                var records = consumer.poll(Duration.ofMillis(100));
                records.forEach(each -> System.out.printf(
                    "[\"record\", %d, %d, \"%s\"]%n", each.partition(), each.offset(), each.value()));
                if (!records.isEmpty()) {
                    commit(consumer);
                }
            }
        } catch (WakeupException asked) {
            System.err.println("asked to leave");
        } finally {
            consumer.close();
        }
    }

    private static void commit(KafkaConsumer<String, String> consumer) {
        try {
            consumer.commitSync();
        } catch (WakeupException asked) {
            throw asked;
        } catch (KafkaException refused) {
            System.out.printf("[\"refused\", \"%s\"]%n", refused.getClass().getSimpleName());
        }
    }

    private static class Prints implements ConsumerRebalanceListener {
        private void print(String what, Collection<TopicPartition> partitions) {
            var numbers = partitions.stream().map(each -> "" + each.partition()).collect(Collectors.joining(", "));
            System.out.printf("[\"%s\", [%s]]%n", what, numbers);
        }

        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            print("assigned", partitions);
        }

        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            print("revoked", partitions);
        }

        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            print("revoked", partitions);
        }
    }
}
