import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/** The Java side of the conformance tests: one command for each scenario, JSON lines in and out. */
public final class Client {
    private static final ObjectMapper JSON = new ObjectMapper().disable(JsonGenerator.Feature.AUTO_CLOSE_TARGET);

    /** A line of input or output; bytes are base64 in JSON, and null is a missing key. */
    record Line(byte[] key, byte[] value, List<Field> headers, long timestamp, int partition, long offset) {
        static Line of(ConsumerRecord<byte[], byte[]> found) {
            List<Field> headers = new ArrayList<>();
            found.headers().forEach(each -> headers.add(new Field(each.key(), each.value())));
            return new Line(
                found.key(), found.value(), headers, found.timestamp(), found.partition(), found.offset());
        }

        List<Header> kafkaHeaders() {
            return headers.stream().<Header>map(each -> new RecordHeader(each.name, each.value)).toList();
        }
    }

    record Field(String name, byte[] value) {}

    public static void main(String[] given) throws Exception {
        String command = given[0];
        String topic = given[2];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", given[1]);
        settings.put("client.id", "conformance");
        settings.putAll(Security.settings());
        switch (command) {
            case "produce" -> Records.produce(settings, topic, given[3]);
            case "consume" -> Records.consume(settings, topic, given[3], Long.parseLong(given[4]));
            case "seek" -> Records.seek(settings, topic, Stream.of(given).skip(3).map(Long::valueOf).toList());
            case "read" -> Records.read(settings, topic);
            case "member" -> Member.run(settings, topic, given[3], given[4], Integer.parseInt(given[5]));
            case "admin" -> Administration.topic(settings, topic);
            case "groups" -> Administration.group(settings, topic, given[3]);
            case "transform" -> Transactions.transform(settings, topic, given[3], Long.parseLong(given[4]));
            case "transact" -> Transactions.transact(settings, topic);
            case "fence" -> Transactions.fence(settings, topic);
            case "two-phase" -> TwoPhase.run(settings, topic, given[3], given[4]);
            case "two-phase-released" -> TwoPhase.released(settings, topic);
            default -> throw new IllegalArgumentException(command);
        }
    }

    /** Prints a line; lines of several threads do not mix. */
    static synchronized void say(Object line) {
        try {
            System.out.println(JSON.writeValueAsString(line));
        } catch (IOException failure) {
            throw new IllegalStateException(failure);
        }
    }

    static void say(String step, Map<String, ?> outcome) {
        Map<String, Object> line = new HashMap<>(outcome);
        line.put("step", step);
        say(line);
    }

    static BufferedReader input() {
        return new BufferedReader(new InputStreamReader(System.in));
    }

    static Line parse(String text) throws IOException {
        return JSON.readValue(text, Line.class);
    }

    /** The settings and some more, as one. */
    static Properties with(Properties settings, Object... more) {
        Properties all = new Properties();
        all.putAll(settings);
        for (int each = 0; each < more.length; each += 2) {
            all.put(more[each], more[each + 1]);
        }
        return all;
    }
}
