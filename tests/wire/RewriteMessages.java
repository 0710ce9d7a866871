// Reads lines "message version hex", lets Apache Kafka's own class read the bytes and write them again, and prints
// "hex json" per line: the bytes that Kafka wrote, and what it understood. Run by test_apache_kafka_messages.py.

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.Readable;

public class RewriteMessages {
    private static final String[] PACKAGES = {
        "org.apache.kafka.common.message",
        "org.apache.kafka.common.metadata",
        "org.apache.kafka.coordinator.group.generated",
        "org.apache.kafka.coordinator.transaction.generated",
        "org.apache.kafka.raft.generated",
        "org.apache.kafka.server.log.remote.metadata.storage.generated",
    };

    private static Class<?> find(String name) throws ClassNotFoundException {
        for (String prefix : PACKAGES) {
            try {
                String known = prefix.endsWith(".message") && (name.endsWith("Request") || name.endsWith("Response"))
                    ? name + "Data" : name;
                return Class.forName(prefix + "." + known);
            } catch (ClassNotFoundException e) {
                continue;
            }
        }
        return Class.forName(PACKAGES[0] + "." + name + "Data");
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            short version = Short.parseShort(words[1]);
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(words[2]));
            Class<?> type = find(words[0]);
            try {
                Message message = (Message) type.getConstructor(Readable.class, short.class)
                    .newInstance(new ByteBufferAccessor(bytes), version);
                // JSON first: writing moves the positions of buffers inside the message.
                Class<?> converter = Class.forName(type.getName() + "JsonConverter");
                JsonNode json = (JsonNode) converter.getMethod("write", type, short.class)
                    .invoke(null, message, version);
                ObjectSerializationCache cache = new ObjectSerializationCache();
                ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
                message.write(new ByteBufferAccessor(written), cache, version);
                out.println(HexFormat.of().formatHex(written.array()) + " " + bytes.remaining() + " " + json);
            } catch (java.lang.reflect.InvocationTargetException e) {
                out.println("refused " + e.getCause());
            }
        }
        out.flush();
    }
}
