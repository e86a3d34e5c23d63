import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.requests.RequestUtils;
import org.apache.kafka.common.requests.ResponseHeader;

/**
 * Prints the bytes, header included, that the Java client's own serializers make of messages, and their values.
 *
 * <p>A line of input names a message (key, version, kind, correlation_id) and either holds its values, as Kafka's
 * JsonConverters know them, or says whether what may be null is null (nulls). The line comes back with hex and values.
 */
public final class Capture {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String CLIENT_ID = "golden";

    public static void main(String[] given) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(capture((ObjectNode) JSON.readTree(line)));
        }
    }

    private static ObjectNode capture(ObjectNode line) throws Exception {
        ApiKeys key = ApiKeys.forId(line.get("key").asInt());
        short version = line.get("version").shortValue();
        boolean request = line.get("kind").asText().equals("request");
        ApiMessageType type = key.messageType;
        ApiMessage message = request ? type.newRequest() : type.newResponse();
        Class<?> json = Class.forName(message.getClass().getName() + "JsonConverter");
        List<byte[]> records = new ArrayList<>();
        if (line.has("values")) {
            Method read = json.getMethod("read", JsonNode.class, short.class);
            message = (ApiMessage) read.invoke(null, line.get("values"), version);
            for (JsonNode each : line.findValues("records")) {
                records.add(each.binaryValue());
            }
        } else {
            var schemas = request ? type.requestSchemas() : type.responseSchemas();
            new Filler(records).fill(message, schemas[version], line.get("nulls").asBoolean());
        }
        ByteBuffer bytes = serialize(line, key, version, message);
        Method write = json.getMethod("write", message.getClass(), short.class);
        JsonNode values = (JsonNode) write.invoke(null, message, version);
        putRecords(values, records);
        line.put("hex", HexFormat.of().formatHex(bytes.array(), bytes.position(), bytes.limit()));
        return line.set("values", values);
    }

    private static ByteBuffer serialize(ObjectNode line, ApiKeys key, short version, ApiMessage message) {
        int correlationId = line.get("correlation_id").asInt();
        if (line.get("kind").asText().equals("response")) {
            ResponseHeader header = new ResponseHeader(correlationId, key.responseHeaderVersion(version));
            return RequestUtils.serialize(header.data(), header.headerVersion(), message, version);
        }
        String clientId = line.get("nulls").asBoolean() ? null : CLIENT_ID;
        RequestHeader header = new RequestHeader(key, version, clientId, correlationId);
        return RequestUtils.serialize(header.data(), header.headerVersion(), message, version);
    }

    /** The JsonConverters write every records field as an empty one. */
    private static void putRecords(JsonNode values, List<byte[]> records) {
        Iterator<byte[]> following = records.iterator();
        for (JsonNode each : values.findParents("records")) {
            if (!each.get("records").isNull()) {
                ((ObjectNode) each).put("records", following.next());
            }
        }
    }
}
