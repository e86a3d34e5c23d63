import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;

/** Transactional producers. */
final class Transactions {
    private static final Duration LONG = Duration.ofSeconds(1);
    private static final int AT_ONCE = 5;

    private Transactions() {}

    /** Doubles the numbers of a topic into another; the first attempt at each third portion is aborted. */
    static void transform(Properties settings, String source, String target, long count) {
        Properties read = Client.with(
            settings, "group.id", source, "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "max.poll.records", AT_ONCE, "isolation.level", "read_committed");
        try (var consumer = Records.consumer(read);
             var producer = Records.producer(Client.with(settings, "transactional.id", source))) {
            consumer.subscribe(List.of(source));
            producer.initTransactions();
            Set<Long> attempted = new HashSet<>();
            for (long done = 0; done < count;) {
                var records = consumer.poll(LONG);
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                records.forEach(each -> producer.send(new ProducerRecord<>(target, doubled(each.value()))));
                producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
                if (done / AT_ONCE % 3 == 1 && attempted.add(done)) {
                    producer.abortTransaction();
                    consumer.committed(consumer.assignment()).forEach(
                        (place, offset) -> consumer.seek(place, offset == null ? 0 : offset.offset()));
                } else {
                    producer.commitTransaction();
                    done += records.count();
                }
            }
        }
    }

    private static byte[] doubled(byte[] number) {
        return String.valueOf(2 * Long.parseLong(new String(number, StandardCharsets.UTF_8)))
            .getBytes(StandardCharsets.UTF_8);
    }

    /** Aborts a transaction, and commits another one. */
    static void transact(Properties settings, String topic) throws Exception {
        try (var producer = Records.producer(Client.with(settings, "transactional.id", topic))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "aborted".getBytes(StandardCharsets.UTF_8))).get();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "committed".getBytes(StandardCharsets.UTF_8)));
            producer.commitTransaction();
        }
    }

    /** A successor takes over the transactional id of a producer in the middle of its transaction. */
    static void fence(Properties settings, String topic) {
        Properties all = Client.with(settings, "transactional.id", topic);
        try (var zombie = Records.producer(all); var successor = Records.producer(all)) {
            zombie.initTransactions();
            zombie.beginTransaction();
            zombie.send(new ProducerRecord<>(topic, "zombie".getBytes(StandardCharsets.UTF_8)));
            zombie.flush();
            successor.initTransactions();
            successor.beginTransaction();
            successor.send(new ProducerRecord<>(topic, "successor".getBytes(StandardCharsets.UTF_8)));
            successor.commitTransaction();
            Map<String, Object> outcome = new HashMap<>();
            try {
                zombie.commitTransaction();
            } catch (KafkaException refused) {
                outcome.put("error", refused.getClass().getSimpleName());
            }
            Client.say("fence", outcome);
        }
    }
}
