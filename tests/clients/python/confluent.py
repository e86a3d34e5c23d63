"""confluent-kafka (librdkafka), the client that most languages wrap: one command for each scenario."""

from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    ThrottleEvent,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from tests.clients.python.lines import (
    SETTING,
    Acknowledged,
    end_of_input,
    flush,
    given_records,
    main,
    say,
    say_committed,
    say_record,
    say_refused,
    shown_acl,
)
from tests.clients.python.security import librdkafka
from tests.clients.python.stray_partitions import LOOKS_EVERY_MS, StrayPartitions

_SETTLED_BY_ANOTHER_COMMIT = (
    KafkaError._TIMED_OUT,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
)
STRATEGIES = {"eager": "range", "cooperative": "cooperative-sticky"}


def group_settings(protocol: str, session_ms: str) -> dict[str, Any]:
    if protocol == "consumer":
        return {"group.protocol": "consumer"}
    return {
        "partition.assignment.strategy": STRATEGIES[protocol],
        "session.timeout.ms": int(session_ms),
        "heartbeat.interval.ms": 300,
    }


def say_throttled(event: ThrottleEvent) -> None:
    say(throttled=event.throttle_time * 1000)


def connection(bootstrap: str) -> dict[str, Any]:
    return {**librdkafka(bootstrap), "client.id": "conformance"}


def consumer_of(bootstrap: str, group: str, more: dict[str, Any] | None = None) -> Consumer:
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer(connection(bootstrap) | settings | {"throttle_cb": say_throttled} | (more or {}))


def say_message(found: Message) -> None:
    if found.error() is not None:
        raise KafkaException(found.error())
    headers = found.headers() or []
    say_record(found.key(), found.value(), headers, found.timestamp()[1], found.partition(), found.offset())


def produce(bootstrap: str, topic: str, codec: str) -> None:
    """Send the records of the input, idempotently."""
    settings = {"compression.type": codec, "enable.idempotence": True, "throttle_cb": say_throttled}
    producer = Producer(connection(bootstrap) | settings)
    acknowledged = Acknowledged()

    def delivered(error: Any, _: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        acknowledged.one_more()

    def serve() -> None:
        while True:
            producer.poll(0.1)

    # What is acknowledged is told while the input is waited for, too.
    Thread(target=serve, daemon=True).start()
    for each in given_records():
        producer.produce(
            topic, each.value, each.key, headers=each.headers, timestamp=each.timestamp_ms, on_delivery=delivered
        )
    producer.flush()


def consume(bootstrap: str, topic: str, group: str, count: str) -> None:
    """Print as many records as a group gets, then commit them and leave."""
    consumer = consumer_of(bootstrap, group)
    consumer.subscribe([topic])
    left = int(count)
    while left:
        message = consumer.poll(0.1)
        if message is not None:
            say_message(message)
            left -= 1
    consumer.commit(asynchronous=False)
    consumer.close()


def member(bootstrap: str, topic: str, group: str, protocol: str, session_ms: str) -> None:
    """Read as one of a group until the input ends. Print what is assigned, read and committed.

    A consumer with `StrayPartitions` leaves, and another one goes on.
    """
    settings = {"auto.offset.reset": "error", "statistics.interval.ms": LOOKS_EVERY_MS}
    assigned: set[int] = set()

    def tell(change: Callable[[set[int]], None], _: Consumer, places: list[TopicPartition]) -> None:
        change({each.partition for each in places})
        say(assigned=sorted(assigned))

    won, lost = partial(tell, assigned.update), partial(tell, assigned.difference_update)
    ended = end_of_input()
    while not ended.is_set():
        strays = StrayPartitions()
        more = settings | {"stats_cb": strays.look} | group_settings(protocol, session_ms)
        consumer = consumer_of(bootstrap, group, more)
        consumer.subscribe([topic], on_assign=won, on_revoke=lost)
        while not (ended.is_set() or strays.found):
            messages = consumer.consume(500, 0.1)
            for message in messages:
                say_message(message)
            if messages:
                commit(consumer)
        if strays.found:
            say(strayed=strays.found)
        consumer.close()


def is_retriable(error: KafkaError) -> bool:
    """Return whether another commit may succeed: librdkafka classifies only a part of its errors."""
    return error.retriable() or error.code() in _SETTLED_BY_ANOTHER_COMMIT


def commit(consumer: Consumer) -> None:
    """Commit what was read, and print what the broker has confirmed."""
    flush()
    try:
        places = consumer.commit(asynchronous=False) or []
    except KafkaException as failure:
        error = failure.args[0]
        say_refused(error.name(), retriable=is_retriable(error))
        return
    for place in places:
        if place.error is not None:
            say_refused(place.error.name(), retriable=is_retriable(place.error))
    # A partition of which nothing was read has a negative offset.
    confirmed = {place.partition: place.offset for place in places if place.error is None and place.offset >= 0}
    say_committed(confirmed)


def transact(bootstrap: str, topic: str) -> None:
    """Abort a transaction, and commit another one."""
    producer = Producer(connection(bootstrap) | {"transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"aborted")
    producer.flush()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.produce(topic, b"committed")
    producer.commit_transaction()


def seek(bootstrap: str, topic: str, *times: str) -> None:
    """Print, for each time, the first record that is not older."""
    consumer = consumer_of(bootstrap, topic)
    for time in times:
        [place] = consumer.offsets_for_times([TopicPartition(topic, 0, int(time))])
        consumer.assign([place])
        say_message(consumer.consume(1)[0])
    consumer.close()


def read(bootstrap: str, topic: str) -> None:
    """Print the first partition, from its start to its end."""
    consumer = consumer_of(bootstrap, topic)
    place = TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(place)
    consumer.assign([place])
    offset = -1
    while offset < end - 1:
        [message] = consumer.consume(1)
        say_message(message)
        offset = message.offset()
    consumer.close()


def refused(step: str, work: Callable[[], Any]) -> None:
    """Tell Kafka's name of the error that a step has to end in."""
    try:
        work()
    except KafkaException as failure:
        say(step=step, error=failure.args[0].name())


def administer(bootstrap: str, topic: str) -> None:
    admin = AdminClient(connection(bootstrap))

    def create() -> None:
        admin.create_topics([NewTopic(topic, 2, config={SETTING: "60000"})])[topic].result()

    def partitions() -> int:
        return len(admin.list_topics(topic).topics[topic].partitions)

    def retention() -> dict[str, Any]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        return {SETTING: admin.describe_configs([resource])[resource].result()[SETTING].value}

    def alter(value: str) -> None:
        entry = ConfigEntry(SETTING, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result()

    create()
    say(step="create", partitions=partitions())
    refused("create again", create)
    say(step="configs", **retention())
    alter("120000")
    say(step="alter", **retention())
    refused("alter badly", lambda: alter("soon"))
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result()
    say(step="grow", partitions=partitions())
    delete_records(bootstrap, admin, topic)
    admin.delete_topics([topic])[topic].result()
    say(step="delete", listed=topic in admin.list_topics().topics)


def delete_records(bootstrap: str, admin: AdminClient, topic: str) -> None:
    producer = Producer(connection(bootstrap))
    for _ in range(10):
        producer.produce(topic, b"x", partition=0)
    producer.flush()

    def edge(spec: OffsetSpec) -> int:
        place = TopicPartition(topic, 0)
        return int(admin.list_offsets({place: spec})[place].result().offset)

    def before(offset: int) -> None:
        place = TopicPartition(topic, 0, offset)
        admin.delete_records([place])[place].result()

    before(4)
    say(step="delete records", start=edge(OffsetSpec.earliest()), end=edge(OffsetSpec.latest()))
    refused("delete records beyond", lambda: before(99))


def administer_group(bootstrap: str, topic: str, group: str) -> None:
    """The steps for a group that has one committed offset and no members."""
    admin = AdminClient(connection(bootstrap))
    asked = ConsumerGroupTopicPartitions(group)

    def listed() -> bool:
        return group in {each.group_id for each in admin.list_consumer_groups().result().valid}

    def offset() -> int:
        [place] = admin.list_consumer_group_offsets([asked])[group].result().topic_partitions
        return int(place.offset)

    def delete() -> None:
        admin.delete_consumer_groups([group])[group].result()

    say(step="list", listed=listed())
    described = admin.describe_consumer_groups([group])[group].result()
    say(step="describe", state=described.state.name.capitalize(), members=len(described.members))
    say(step="offsets", offset=offset())
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    admin.alter_consumer_group_offsets([moved])[group].result()
    say(step="alter offsets", offset=offset())
    delete()
    say(step="delete", listed=listed())
    refused("delete again", delete)


def administer_acls(bootstrap: str, topic: str) -> None:
    admin = AdminClient(connection(bootstrap))
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    read = ("*", AclOperation.READ, AclPermissionType.ALLOW)
    write = ("*", AclOperation.WRITE, AclPermissionType.DENY)
    anything = (None, AclOperation.ANY, AclPermissionType.ANY)

    def create(*acls: AclBinding) -> None:
        for each in admin.create_acls(list(acls)).values():
            each.result()

    def described() -> list[str]:
        counting = AclBindingFilter(ResourceType.TOPIC, topic, ResourcePatternType.MATCH, None, *anything)
        found = admin.describe_acls(counting).result()
        return sorted(shown_acl(acl.principal, acl.operation, acl.permission_type) for acl in found)

    create(
        AclBinding(ResourceType.TOPIC, topic, literal, "User:alice", *read),
        AclBinding(ResourceType.TOPIC, topic[:-1], prefixed, "User:*", *write),
    )
    say(step="create", acls=described())
    refused("create badly", lambda: create(AclBinding(ResourceType.TOPIC, topic, literal, "alice", *read)))
    wanted = AclBindingFilter(ResourceType.TOPIC, topic, literal, "User:alice", *anything)
    say(step="delete", deleted=len(admin.delete_acls([wanted])[wanted].result()))
    say(step="left", acls=described())


if __name__ == "__main__":
    main(
        produce=produce,
        consume=consume,
        member=member,
        seek=seek,
        read=read,
        transact=transact,
        admin=administer,
        groups=administer_group,
        acls=administer_acls,
    )
