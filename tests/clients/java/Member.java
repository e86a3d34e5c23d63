import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;

/** Reads as one of a group until the input ends; tells what it is assigned, and what it reads. */
final class Member implements ConsumerRebalanceListener {
    private final Set<Integer> assigned = new TreeSet<>();

    static void run(Properties settings, String topic, String group, String protocol) {
        Properties all = Client.with(
            settings, "group.id", group, "auto.offset.reset", "earliest", "auto.commit.interval.ms", 100,
            "group.protocol", protocol.equals("consumer") ? "consumer" : "classic");
        if (!protocol.equals("consumer")) {
            Class<?> assignor = protocol.equals("eager") ? RangeAssignor.class : CooperativeStickyAssignor.class;
            all = Client.with(
                all, "session.timeout.ms", 3000, "heartbeat.interval.ms", 300,
                "partition.assignment.strategy", assignor.getName());
        }
        try (var consumer = Records.consumer(all)) {
            consumer.subscribe(List.of(topic), new Member());
            Thread reader = new Thread(() -> wakeAtEndOfInput(consumer));
            reader.setDaemon(true);
            reader.start();
            while (true) {
                consumer.poll(Duration.ofSeconds(1)).forEach(each -> Client.say(Client.Line.of(each)));
            }
        } catch (WakeupException end) {
            // The input has ended; closing has committed what was read.
        }
    }

    private static void wakeAtEndOfInput(KafkaConsumer<byte[], byte[]> consumer) {
        try (BufferedReader input = Client.input()) {
            input.transferTo(Writer.nullWriter());
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        consumer.wakeup();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        partitions.forEach(each -> assigned.add(each.partition()));
        Client.say(Map.of("assigned", assigned));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        partitions.forEach(each -> assigned.remove(each.partition()));
        Client.say(Map.of("assigned", assigned));
    }
}
