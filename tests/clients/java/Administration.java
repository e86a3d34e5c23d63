import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;

/** What an administrator does to a topic and to a group; each step's outcome is told. */
final class Administration {
    private static final String SETTING = "retention.ms";

    private Administration() {}

    static void topic(Properties settings, String topic) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            NewTopic described = new NewTopic(topic, Optional.of(2), Optional.empty()).configs(Map.of(SETTING, "60000"));
            admin.createTopics(List.of(described)).all().get();
            Client.say("create", Map.of("partitions", partitions(admin, topic)));
            refused("create again", admin.createTopics(List.of(described)).all());

            Client.say("configs", Map.of(SETTING, retention(admin, topic)));
            alter(admin, topic, "120000").get();
            Client.say("alter", Map.of(SETTING, retention(admin, topic)));
            refused("alter badly", alter(admin, topic, "soon"));

            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            Client.say("grow", Map.of("partitions", partitions(admin, topic)));

            deleteRecords(settings, admin, new TopicPartition(topic, 0));

            admin.deleteTopics(List.of(topic)).all().get();
            Client.say("delete", Map.of("listed", admin.listTopics().names().get().contains(topic)));
        }
    }

    private static int partitions(Admin admin, String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
    }

    private static String retention(Admin admin, String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(SETTING).value();
    }

    private static KafkaFuture<Void> alter(Admin admin, String topic, String value) {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp set = new AlterConfigOp(new ConfigEntry(SETTING, value), AlterConfigOp.OpType.SET);
        return admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all();
    }

    private static void deleteRecords(Properties settings, Admin admin, TopicPartition place) throws Exception {
        try (var producer = Records.producer(settings)) {
            for (int each = 0; each < 10; each++) {
                producer.send(new ProducerRecord<>(place.topic(), place.partition(), null, new byte[] {'x'})).get();
            }
        }
        admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(4))).all().get();
        long start = admin.listOffsets(Map.of(place, OffsetSpec.earliest())).partitionResult(place).get().offset();
        long end = admin.listOffsets(Map.of(place, OffsetSpec.latest())).partitionResult(place).get().offset();
        Client.say("delete records", Map.of("start", start, "end", end));
        refused("delete records beyond", admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(99))).all());
    }

    /** Looks at a group that has one committed offset and no members, and removes it bit by bit. */
    static void group(Properties settings, String topic, String group) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(settings)) {
            Client.say("list", Map.of("listed", listed(admin, group)));
            var described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            var shown = Map.of("state", described.groupState().toString(), "members", described.members().size());
            Client.say("describe", shown);
            Client.say("offsets", Map.of("offset", offsets(admin, group).get(place).offset()));

            var moved = Map.of(place, new OffsetAndMetadata(3));
            admin.alterConsumerGroupOffsets(group, moved).all().get();
            Client.say("alter offsets", Map.of("offset", offsets(admin, group).get(place).offset()));
            admin.deleteConsumerGroupOffsets(group, Set.of(place)).all().get();
            Client.say("delete offsets", Map.of("left", offsets(admin, group).size()));

            admin.alterConsumerGroupOffsets(group, moved).all().get();
            admin.deleteConsumerGroups(List.of(group)).all().get();
            Client.say("delete", Map.of("listed", listed(admin, group)));
            refused("delete again", admin.deleteConsumerGroups(List.of(group)).all());
        }
    }

    private static boolean listed(Admin admin, String group) throws Exception {
        return admin.listGroups().all().get().stream().map(GroupListing::groupId).anyMatch(group::equals);
    }

    private static Map<TopicPartition, OffsetAndMetadata> offsets(Admin admin, String group) throws Exception {
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
    }

    /** Tells Kafka's name of the error that a step has to end in. */
    private static void refused(String step, KafkaFuture<?> future) throws InterruptedException {
        try {
            future.get();
            throw new IllegalStateException(step);
        } catch (ExecutionException failure) {
            Client.say(step, Map.of("error", Errors.forException(failure.getCause()).name()));
        }
    }
}
