"""kafka-python: synchronous, pure Python; one command for each scenario."""

import logging
import re
from collections.abc import Callable
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    NewTopic,
    OffsetSpec,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

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
from tests.clients.python.security import has_token, read_token, security

SECURITY = {
    "protocol": "security_protocol",
    "ca": "ssl_cafile",
    "certificate": "ssl_certfile",
    "key": "ssl_keyfile",
    "mechanism": "sasl_mechanism",
    "user": "sasl_plain_username",
    "password": "sasl_plain_password",
}
ASSIGNORS = {"eager": RangePartitionAssignor, "cooperative": CooperativeStickyAssignor}


def connection(bootstrap: str) -> dict[str, Any]:
    settings = {"bootstrap_servers": bootstrap, "client_id": "conformance", **security(SECURITY)}
    if has_token():
        settings |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": TokenFile()}
    return settings


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """Gives the token of the test."""

    def token(self) -> str:
        return read_token()


def say_throttled(client: KafkaProducer | KafkaConsumer) -> None:
    """The client keeps the longest time that it was told to wait."""
    longest = max(group.get("throttle-time-max", 0) for group in client.metrics().values())
    if longest > 0:
        say(throttled=longest)


def say_message(found: Any) -> None:
    say_record(found.key, found.value, found.headers, found.timestamp, found.partition, found.offset)


def produce(bootstrap: str, topic: str, codec: str) -> None:
    """Send the records of the input; the producer is idempotent by default."""
    producer = KafkaProducer(
        **connection(bootstrap),
        compression_type=None if codec == "none" else codec,
        linger_ms=5,
        batch_size=1 << 18,
    )
    acknowledged = Acknowledged()
    failures: list[BaseException] = []
    for each in given_records():
        sent = producer.send(topic, each.value, key=each.key, headers=each.headers, timestamp_ms=each.timestamp_ms)
        sent.add_callback(lambda _: acknowledged.one_more()).add_errback(failures.append)
    producer.flush()
    if failures:
        raise failures[0]
    say_throttled(producer)
    producer.close()


def consume(bootstrap: str, topic: str, group: str, count: str) -> None:
    """Print as many records as a group gets, then commit them and leave."""
    consumer = KafkaConsumer(
        topic, **connection(bootstrap), group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    left = int(count)
    while left:
        for messages in poll(consumer, left).values():
            for each in messages:
                say_message(each)
            left -= len(messages)
    consumer.commit()
    say_throttled(consumer)
    consumer.close()


class Assigned(ConsumerRebalanceListener):  # type: ignore[misc]
    """Tells what is assigned, each time that it has changed."""

    def __init__(self) -> None:
        self._partitions: set[int] = set()

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._partitions |= {each.partition for each in assigned}
        say(assigned=sorted(self._partitions))

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self._partitions -= {each.partition for each in revoked}
        say(assigned=sorted(self._partitions))


def member(bootstrap: str, topic: str, group: str, protocol: str, session_ms: str) -> None:
    """Read as one of a group until the input ends. Print what is assigned, read and committed."""
    consumer = KafkaConsumer(
        **connection(bootstrap),
        group_id=group,
        auto_offset_reset="none",
        enable_auto_commit=False,
        session_timeout_ms=int(session_ms),
        heartbeat_interval_ms=300,
        partition_assignment_strategy=[ASSIGNORS[protocol]],
    )
    consumer.subscribe([topic], listener=Assigned())
    ended = end_of_input()
    while not ended.is_set():
        # Its poll forgets an assignment that comes when the time is just up: the time has to be long.
        fetched = poll(consumer)
        for messages in fetched.values():
            for each in messages:
                say_message(each)
        if fetched:
            commit(consumer, {place: messages[-1].offset + 1 for place, messages in fetched.items()})
    consumer.close()


def poll(consumer: KafkaConsumer, limit: int | None = None) -> dict[TopicPartition, list[Any]]:
    """Return new messages. This client reports a connection that a broker has refused as an error."""
    try:
        fetched: dict[TopicPartition, list[Any]] = consumer.poll(timeout_ms=3000, max_records=limit)
    except errors.KafkaConnectionError as failure:
        say_refused(type(failure).__name__, retriable=failure.retriable)
        return {}
    return fetched


def commit(consumer: KafkaConsumer, offsets: dict[TopicPartition, int]) -> None:
    """Commit what was read, and print what the broker has confirmed."""
    flush()
    try:
        consumer.commit({place: OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()})
    except errors.KafkaError as failure:
        say_refused(type(failure).__name__, retriable=failure.retriable)
        return
    say_committed({place.partition: offset for place, offset in offsets.items()})


def transact(bootstrap: str, topic: str) -> None:
    """Abort a transaction, and commit another one."""
    producer = KafkaProducer(**connection(bootstrap), transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"aborted").get()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"committed")
    producer.commit_transaction()
    producer.close()


def seek(bootstrap: str, topic: str, *times: str) -> None:
    """Print, for each time, the first record that is not older."""
    consumer = KafkaConsumer(**connection(bootstrap))
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    for time in times:
        consumer.seek(place, consumer.offsets_for_times({place: int(time)})[place].offset)
        say_message(next(consumer))
    consumer.close()


def read(bootstrap: str, topic: str) -> None:
    """Print the first partition, from its start to its end."""
    consumer = KafkaConsumer(**connection(bootstrap), auto_offset_reset="earliest")
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    end = consumer.end_offsets([place])[place]
    for message in consumer:
        say_message(message)
        if message.offset == end - 1:
            break
    consumer.close()


def refused(step: str, work: Callable[[], Any]) -> None:
    """Tell Kafka's name of the error that a step has to end in."""
    try:
        work()
    except errors.KafkaError as failure:
        say(step=step, error=failure.message)


def error_name(told: str) -> str:
    """Some errors are told as text, which has their number: "[Error 40] ..."."""
    found = re.match(r"\[Error (\d+)\]", told)
    assert found is not None, told
    return str(errors.for_code(int(found.group(1))).message)


def administer(bootstrap: str, topic: str) -> None:
    admin = KafkaAdminClient(**connection(bootstrap))

    def create() -> None:
        admin.create_topics([NewTopic(topic, 2, -1, topic_configs={SETTING: "60000"})])

    def partitions() -> int:
        return len(admin.describe_topics([topic])[0]["partitions"])

    def retention() -> dict[str, Any]:
        described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return {SETTING: described["topic"][topic][SETTING]["value"]}

    def alter(value: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {SETTING: value})
        return str(admin.alter_configs([resource])["topic"][topic])

    create()
    say(step="create", partitions=partitions())
    refused("create again", create)
    say(step="configs", **retention())
    alter("120000")
    say(step="alter", **retention())
    say(step="alter badly", error=error_name(alter("soon")))
    admin.create_partitions({topic: 4})
    say(step="grow", partitions=partitions())
    delete_records(bootstrap, admin, topic)
    admin.delete_topics([topic])
    say(step="delete", listed=topic in admin.list_topics())
    admin.close()


def delete_records(bootstrap: str, admin: KafkaAdminClient, topic: str) -> None:
    producer = KafkaProducer(**connection(bootstrap))
    for _ in range(10):
        producer.send(topic, b"x", partition=0)
    producer.close()
    place = TopicPartition(topic, 0)

    def edge(spec: OffsetSpec) -> int:
        return int(admin.list_partition_offsets({place: spec})[place].offset)

    admin.delete_records({place: 4})
    say(step="delete records", start=edge(OffsetSpec.EARLIEST), end=edge(OffsetSpec.LATEST))
    refused("delete records beyond", lambda: admin.delete_records({place: 99}))


def administer_group(bootstrap: str, topic: str, group: str) -> None:
    """The steps for a group that has one committed offset and no members."""
    admin = KafkaAdminClient(**connection(bootstrap))
    place = TopicPartition(topic, 0)

    def listed() -> bool:
        return group in {each["group_id"] for each in admin.list_groups()}

    def offsets() -> Any:
        return admin.list_group_offsets([group])[group]

    moved = {place: OffsetAndMetadata(3, "", -1)}
    say(step="list", listed=listed())
    described = admin.describe_groups([group])[group]
    say(step="describe", state=described["group_state"], members=len(described["members"]))
    say(step="offsets", offset=offsets()[place].offset)
    admin.alter_group_offsets(group, moved)
    say(step="alter offsets", offset=offsets()[place].offset)
    admin.delete_group_offsets(group, [place])
    say(step="delete offsets", left=len(offsets()))
    admin.alter_group_offsets(group, moved)
    admin.delete_groups([group])
    say(step="delete", listed=listed())
    say(step="delete again", error=getattr(errors, admin.delete_groups([group])[group]).message)
    admin.close()


def administer_acls(bootstrap: str, topic: str) -> None:
    admin = KafkaAdminClient(**connection(bootstrap))
    literal = ResourcePattern(ResourceType.TOPIC, topic)
    prefixed = ResourcePattern(ResourceType.TOPIC, topic[:-1], ACLResourcePatternType.PREFIXED)
    read, write, anything = ACLOperation.READ, ACLOperation.WRITE, (None, ACLOperation.ANY, ACLPermissionType.ANY)

    def described() -> list[str]:
        counting = ResourcePatternFilter(ResourceType.TOPIC, topic, ACLResourcePatternType.MATCH)
        found, _ = admin.describe_acls(ACLFilter(None, *anything, counting))
        return sorted(shown_acl(acl.principal, acl.operation, acl.permission_type) for acl in found)

    allowing = ACL("User:alice", "*", read, ACLPermissionType.ALLOW, literal)
    admin.create_acls([allowing, ACL("User:*", "*", write, ACLPermissionType.DENY, prefixed)])
    say(step="create", acls=described())
    [error] = admin.create_acls([ACL("alice", "*", read, ACLPermissionType.ALLOW, literal)])["failed"]
    say(step="create badly", error=error.message)
    [(_, deleted, _)] = admin.delete_acls([ACLFilter("User:alice", *anything, literal)])
    say(step="delete", deleted=len(deleted))
    say(step="left", acls=described())
    admin.close()


if __name__ == "__main__":
    # It warns of every answer that throttles it.
    logging.disable(logging.WARNING)
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
