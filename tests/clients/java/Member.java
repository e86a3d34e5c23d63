import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RetriableException;

/** Reads as one of a group until the input ends; prints what is assigned, read and committed. */
final class Member implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(200);

    private final Set<Integer> assigned = new TreeSet<>();

    static void run(Properties settings, String topic, String group, String protocol, int sessionMs) {
        Properties all = Client.with(
            settings, "group.id", group, "auto.offset.reset", "none", "enable.auto.commit", false,
            "group.protocol", protocol.equals("consumer") ? "consumer" : "classic");
        if (!protocol.equals("consumer")) {
            Class<?> assignor = protocol.equals("eager") ? RangeAssignor.class : CooperativeStickyAssignor.class;
            all = Client.with(
                all, "session.timeout.ms", sessionMs, "heartbeat.interval.ms", 300,
                "partition.assignment.strategy", assignor.getName());
        }
        try (var consumer = Records.consumer(all)) {
            consumer.subscribe(List.of(topic), new Member());
            AtomicBoolean isOver = new AtomicBoolean();
            Thread reader = new Thread(() -> awaitEndOfInput(isOver));
            reader.setDaemon(true);
            reader.start();
            Map<TopicPartition, OffsetAndMetadata> uncommitted = new HashMap<>();
            while (!isOver.get()) {
                var records = consumer.poll(POLL);
                records.forEach(each -> Client.say(Client.Line.of(each)));
                uncommitted.putAll(records.nextOffsets());
                uncommitted.keySet().retainAll(consumer.assignment());
                commit(consumer, uncommitted);
            }
        }
    }

    private static void awaitEndOfInput(AtomicBoolean isOver) {
        try (BufferedReader input = Client.input()) {
            input.transferTo(Writer.nullWriter());
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        isOver.set(true);
    }

    /** Commits what was read, and prints what the broker has confirmed. */
    private static void commit(
            KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, OffsetAndMetadata> uncommitted) {
        if (uncommitted.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(uncommitted);
        } catch (KafkaException failure) {
            String name = failure.getClass().getSimpleName();
            Client.say(Map.of("refused", name, "retriable", failure instanceof RetriableException));
            return;
        }
        Map<Integer, Long> confirmed = new HashMap<>();
        uncommitted.forEach((place, next) -> confirmed.put(place.partition(), next.offset()));
        Client.say(Map.of("committed", confirmed));
        uncommitted.clear();
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
