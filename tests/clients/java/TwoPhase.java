import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Queue;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.internals.TransactionManager;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.requests.InitProducerIdRequest;

/**
 * Two-phase commit (KIP-939) by Kafka's own producer, with those of its parts that a release leaves unused.
 *
 * <p>The steps of KIP-939 are in the producer's transaction manager, but releases have no methods that call them, do
 * not set the fields of InitProducerId v6, take v6 for unstable, and send no EndTxn for a transaction that an earlier
 * process has begun. So private fields are read and changed here.
 */
final class TwoPhase {
    private final KafkaProducer<byte[], byte[]> producer;
    private final TransactionManager manager;

    private TwoPhase(KafkaProducer<byte[], byte[]> producer) throws ReflectiveOperationException {
        this.producer = producer;
        this.manager = (TransactionManager) get(KafkaProducer.class, producer, "transactionManager");
    }

    /** The producer as it was released. */
    static void released(Properties settings, String topic) throws Exception {
        try (var producer = producer(settings, topic)) {
            producer.initTransactions();
            Client.say("initialized", Map.of("timeout_ms", timeoutMs(settings, topic)));
        }
    }

    /** Recovers, prepares a transaction of one record, and commits it when there is a line of input. */
    static void run(Properties settings, String topic, String value, String verdict) throws Exception {
        set(ApiMessageType.class, ApiMessageType.INIT_PRODUCER_ID, "latestVersionUnstable", false);
        try (var producer = producer(settings, topic); var input = Client.input()) {
            TwoPhase participant = new TwoPhase(producer);
            participant.recover(verdict);
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, value.getBytes(StandardCharsets.UTF_8)));
            Client.say(
                "prepared",
                Map.of("transaction", participant.prepare(), "timeout_ms", timeoutMs(settings, topic)));
            if (input.readLine() == null) {
                return;
            }
            producer.commitTransaction();
            Client.say("committed", Map.of());
        } catch (KafkaException refused) {
            Client.say("refused", Map.of("error", refused.getClass().getSimpleName()));
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(Properties settings, String topic) {
        return Records.producer(
            Client.with(settings, "transactional.id", topic, "transaction.two.phase.commit.enable", true));
    }

    private static long timeoutMs(Properties settings, String topic) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            return admin.describeTransactions(List.of(topic)).description(topic).get().transactionTimeoutMs();
        }
    }

    /** As `initTransactions(true)` and `completeTransaction(verdict)` of KIP-939. */
    private void recover(String verdict) throws ReflectiveOperationException {
        synchronized (manager) { // which hands out no request meanwhile
            manager.initializeTransactions(true);
            Object handler = ((Queue<?>) get(TransactionManager.class, manager, "pendingRequests")).element();
            var request = (InitProducerIdRequest.Builder) get(handler.getClass(), handler, "builder");
            request.data.setEnable2Pc(true).setKeepPreparedTxn(true);
        }
        producer.initTransactions(); // waits for that request
        if (!manager.isPrepared()) {
            Client.say("recovered", Map.of("outcome", "nothing"));
            return;
        }
        String left = prepared();
        boolean isDecided = left.equals(verdict);
        set(TransactionManager.class, manager, "transactionStarted", true);
        if (isDecided) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
        Client.say("recovered", Map.of("outcome", isDecided ? "committed" : "aborted", "transaction", left));
    }

    /** As `prepareTransaction()` of KIP-939: returns the name that the database stores. */
    private String prepare() {
        manager.prepareTransaction();
        producer.flush();
        return prepared();
    }

    private String prepared() {
        var state = manager.preparedTransactionState();
        return state.producerId + ":" + state.epoch;
    }

    private static Object get(Class<?> owner, Object of, String name) throws ReflectiveOperationException {
        Field field = owner.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(of);
    }

    private static void set(Class<?> owner, Object of, String name, boolean value) throws ReflectiveOperationException {
        Field field = owner.getDeclaredField(name);
        field.setAccessible(true);
        field.setBoolean(of, value);
    }
}
