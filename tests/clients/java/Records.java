import java.io.BufferedReader;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Producing, consuming, and finding records by their time. */
final class Records {
    private static final Duration LONG = Duration.ofSeconds(1);

    private Records() {}

    static KafkaProducer<byte[], byte[]> producer(Properties settings) {
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(Properties settings) {
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Sends the records of the input, idempotently, as is the default; each thousandth acknowledged is told. */
    static void produce(Properties settings, String topic, String codec) throws IOException {
        AtomicLong acknowledged = new AtomicLong();
        Properties all = Client.with(settings, "compression.type", codec, "linger.ms", 5, "batch.size", 1 << 17);
        try (var producer = producer(all); BufferedReader input = Client.input()) {
            for (String text = input.readLine(); text != null; text = input.readLine()) {
                Client.Line line = Client.parse(text);
                var sent = new ProducerRecord<>(
                    topic, null, line.timestamp(), line.key(), line.value(), line.kafkaHeaders());
                producer.send(sent, (place, failure) -> {
                    if (failure != null) {
                        failure.printStackTrace();
                        Runtime.getRuntime().halt(1);
                    }
                    if (acknowledged.incrementAndGet() % 1000 == 0) {
                        Client.say(Map.of("acknowledged", acknowledged.get()));
                    }
                });
            }
            producer.flush();
            sayThrottled("produce-throttle-time-max", producer.metrics());
        }
    }

    /** Prints as many records as a group gets, then commits them and leaves. */
    static void consume(Properties settings, String topic, String group, long count) {
        Properties all = Client.with(
            settings, "group.id", group, "auto.offset.reset", "earliest", "max.poll.records", 10_000,
            "enable.auto.commit", false);
        try (var consumer = consumer(all)) {
            consumer.subscribe(List.of(topic));
            for (long left = count; left > 0;) {
                var records = consumer.poll(LONG);
                records.forEach(each -> Client.say(Client.Line.of(each)));
                left -= records.count();
            }
            consumer.commitSync();
            sayThrottled("fetch-throttle-time-max", consumer.metrics());
        }
    }

    /** Tells the longest time for which the broker has throttled the client. */
    private static void sayThrottled(String name, Map<MetricName, ? extends Metric> metrics) {
        metrics.values().stream()
            .filter(each -> each.metricName().name().equals(name))
            .map(each -> (Double) each.metricValue())
            .filter(each -> each > 0)
            .forEach(each -> Client.say(Map.of("throttled", each)));
    }

    /** Prints the first partition, from its start to its end. */
    static void read(Properties settings, String topic) {
        TopicPartition place = new TopicPartition(topic, 0);
        try (var consumer = consumer(Client.with(settings, "auto.offset.reset", "earliest"))) {
            consumer.assign(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            while (consumer.position(place) < end) {
                consumer.poll(LONG).forEach(each -> Client.say(Client.Line.of(each)));
            }
        }
    }

    /** Prints, for each time, the first record that is not older. */
    static void seek(Properties settings, String topic, List<Long> times) {
        TopicPartition place = new TopicPartition(topic, 0);
        try (var consumer = consumer(Client.with(settings, "max.poll.records", 1))) {
            consumer.assign(List.of(place));
            for (long time : times) {
                consumer.seek(place, consumer.offsetsForTimes(Map.of(place, time)).get(place).offset());
                var records = consumer.poll(LONG);
                while (records.isEmpty()) {
                    records = consumer.poll(LONG);
                }
                Client.say(Client.Line.of(records.iterator().next()));
            }
        }
    }
}
