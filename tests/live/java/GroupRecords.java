import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.generated.CoordinatorRecordJsonConverters;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * Records of `__consumer_offsets` by the broker's own classes, line by line: `read` takes
 * "key value" in Base64 ("-": a tombstone) and prints {"kind", "key", "value"}; `write` takes such
 * JSON and prints "key value".
 */
public final class GroupRecords {
    public static void main(String[] arguments) throws Exception {
        var mapper = new ObjectMapper();
        var serde = new GroupCoordinatorRecordSerde();
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (arguments[0].equals("read")) {
                String[] parts = line.split(" ");
                byte[] value = parts[1].equals("-") ? null : Base64.getDecoder().decode(parts[1]);
                var record = serde.deserialize(ByteBuffer.wrap(Base64.getDecoder().decode(parts[0])), value == null ? null : ByteBuffer.wrap(value));
                ObjectNode found = mapper.createObjectNode();
                found.put("kind", record.key().apiKey());
                found.set("key", CoordinatorRecordJsonConverters.writeRecordKeyAsJson(record.key()));
                found.set("value", value == null ? null
                    : CoordinatorRecordJsonConverters.writeRecordValueAsJson(record.value().message(), record.value().version()));
                System.out.println(mapper.writeValueAsString(found));
            } else {
                JsonNode given = mapper.readTree(line);
                short kind = (short) given.get("kind").asInt();
                ApiMessage key = CoordinatorRecordJsonConverters.readRecordKeyFromJson(given.get("key"), kind);
                ApiMessage value = CoordinatorRecordJsonConverters.readRecordValueFromJson(given.get("value"), kind, (short) 0);
                var record = CoordinatorRecord.record(key, new ApiMessageAndVersion(value, (short) 0));
                var encoder = Base64.getEncoder();
                System.out.println(encoder.encodeToString(serde.serializeKey(record)) + " " + encoder.encodeToString(serde.serializeValue(record)));
            }
        }
    }
}
