"""The audit: which decisions become records of `__audit`, what bounds them, and that nothing waits for them."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients import audit as audit_module
from conveyor.broker.clients.audit import MAX_WAITING_BYTES, SAMPLE_MS, SAMPLED
from conveyor.broker.clients.audit_event import MAX_NAME_CHARACTERS, AuditEvent
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.image import AUDIT_TOPIC
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.acl import OPERATIONS, Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.caller import PLAINTEXT, Caller, Principal, PrincipalType
from conveyor.kernel.errors import ErrorKind, RequestError
from tests.callers import CALLER
from tests.unit.broker.clients.audit_records import audit_of, audit_records, with_time, written_records
from tests.unit.broker.parts import Storage, calls_of, publish, running_parts
from tests.unit.broker.two_brokers import TWO, two_brokers

READ, WRITE, CREATE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE
TOPIC = ResourceType.TOPIC
SETTINGS = {"access.enabled": True, "access.super_users": "User:root"}
ALLOWED = Acl(TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", READ, Permission.ALLOW)


def caller(user: str, address: str = "192.0.2.1", connection: int = 1) -> Caller:
    return Caller(Principal(PrincipalType.USER, user), address, PLAINTEXT, connection)


ROOT, ALICE = caller("root"), caller("alice")


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    async with running_parts(SETTINGS, storage) as running:
        yield running


def ask(broker: BrokerNode, who: Caller, operation: AclOperation, name: str = "orders", api: str = "Api") -> bool:
    return broker.clients.access.permits(who, api, operation, TOPIC, name)


async def test_a_record_says_who_did_what_on_what_and_by_which_rule(broker: BrokerNode, storage: Storage) -> None:
    await broker.clients.access.add(ROOT, [ALLOWED])
    assert ask(broker, ROOT, CREATE, api="CreateTopics")
    assert not ask(broker, ALICE, WRITE, api="POST /topics/{topic}/messages")
    assert ask(broker, ALICE, READ, api="Fetch")
    created, denied, read = await written_records(broker, storage.clock, 3)
    assert created == {
        "time": "2023-11-14T22:13:20.000Z", "principal": "User:root", "address": "192.0.2.1", "listener": "PLAINTEXT",
        "request": "CreateTopics", "operation": "Create", "resource_type": "Topic", "resource": "orders",
        "allowed": True, "rule": "a super user (access.super_users)", "broker": 1, "count": 1,
    }  # fmt: skip
    assert list(created) == list(AuditEvent.__struct_fields__)
    shown = ("principal", "request", "operation", "allowed", "rule")
    assert [denied[name] for name in shown] == [
        "User:alice", "POST /topics/{topic}/messages", "Write", False, "no ACL allows it",
    ]  # fmt: skip
    assert [read[name] for name in shown] == [
        "User:alice", "Fetch", "Read", True, "Allow User:alice from * to Read Topic orders",
    ]  # fmt: skip


async def test_every_allowed_operation_is_sampled_or_administration(broker: BrokerNode, storage: Storage) -> None:
    asked = [(kind, operation) for kind, operations in OPERATIONS.items() for operation in operations]
    for kind, operation in asked * 3:
        assert broker.clients.access.permits(ROOT, "Api", operation, kind, "x")
    count = sum(1 if operation in SAMPLED else 3 for _, operation in asked)
    events = await written_records(broker, storage.clock, count)
    kinds = {(event["resource_type"], event["operation"]) for event in events}
    assert kinds == {(kind.value, operation.value) for kind, operation in asked}
    administration = {operation.value for operation in AclOperation} - {operation.value for operation in SAMPLED}
    assert {"Create", "Delete", "Alter", "AlterConfigs", "ClusterAction"} <= administration


async def test_reads_are_counted_after_the_first_and_shown_once_a_minute(broker: BrokerNode, storage: Storage) -> None:
    await broker.clients.access.add(ROOT, [ALLOWED])
    for connection in range(7):
        assert ask(broker, caller("alice", connection=connection), READ)
    ask(broker, caller("alice", "192.0.2.2"), READ)
    assert [event["count"] for event in await written_records(broker, storage.clock, 2)] == [1, 1]
    storage.clock.advance(ms=SAMPLE_MS)
    assert [event["count"] for event in await written_records(broker, storage.clock, 8)] == [1, 1, 6]
    storage.clock.advance(ms=SAMPLE_MS)
    storage.clock.advance(ms=SAMPLE_MS)
    ask(broker, ALICE, READ)
    assert [event["count"] for event in await written_records(broker, storage.clock, 9)] == [1, 1, 6, 1]


async def test_decisions_by_another_rule_are_another_event(broker: BrokerNode, storage: Storage) -> None:
    await broker.clients.access.add(ROOT, [ALLOWED])
    ask(broker, ALICE, READ)
    ask(broker, ALICE, READ)
    everything = msgspec.structs.replace(ALLOWED, operation=AclOperation.ALL)
    await broker.clients.access.remove(ROOT, [])
    await broker.clients.access.add(ROOT, [everything])
    await broker.clients.access.add(ROOT, [msgspec.structs.replace(ALLOWED, permission=Permission.DENY)])
    assert not ask(broker, ALICE, READ)
    events = await written_records(broker, storage.clock, 2)
    assert [event["rule"].split()[0] for event in events] == ["Allow", "Deny"]
    storage.clock.advance(ms=SAMPLE_MS)
    assert len(await written_records(broker, storage.clock, 3)) == 3


async def test_equal_denials_of_a_second_are_one_record_and_others_are_not(
    broker: BrokerNode, storage: Storage
) -> None:
    for _ in range(5):
        assert not ask(broker, ALICE, WRITE)
    assert not ask(broker, ALICE, WRITE, "mails")
    assert [event["count"] for event in await written_records(broker, storage.clock, 6)] == [5, 1]
    assert not ask(broker, ALICE, WRITE)
    assert [event["count"] for event in await written_records(broker, storage.clock, 7)] == [5, 1, 1]


async def test_what_only_chooses_what_an_answer_shows_is_no_event(broker: BrokerNode) -> None:
    access = broker.clients.access
    assert not access.allows(ALICE, READ, TOPIC, "orders")
    assert access.operations(ALICE, TOPIC, "orders") == 0
    assert not access.decide_any(ALICE, WRITE, TOPIC).is_allowed
    assert audit_of(broker).waiting_count == 0


async def test_no_topic_is_created_before_the_first_event(broker: BrokerNode, storage: Storage) -> None:
    storage.clock.advance(seconds=5)
    assert AUDIT_TOPIC not in broker.metadata.image.topics
    ask(broker, ROOT, CREATE)
    await written_records(broker, storage.clock, 1)
    topic = broker.metadata.image.topics[AUDIT_TOPIC]
    assert topic.is_internal
    assert len(topic.partitions) == 1
    assert {name: topic.config[name] for name in ("cleanup.policy", "flush.policy", "retention.ms")} == {
        "cleanup.policy": "delete", "flush.policy": "ack", "retention.ms": "604800000",
    }  # fmt: skip


@pytest.mark.parametrize("settings", [{"access.enabled": False}, SETTINGS | {"access.audit": False}])
async def test_there_is_no_audit_without_rules_or_if_it_is_off(settings: dict[str, object]) -> None:
    async with running_parts(settings) as broker:
        assert broker.clients.access.audit is None
        assert ask(broker, ROOT, CREATE)


async def test_writing_makes_no_events(broker: BrokerNode, storage: Storage) -> None:
    ask(broker, ROOT, CREATE)
    await written_records(broker, storage.clock, 1)
    storage.clock.advance(seconds=200)
    await asyncio.sleep(0)
    assert (audit_of(broker).written, audit_of(broker).waiting_count) == (1, 0)


async def test_clients_cannot_write_or_change_the_records(broker: BrokerNode, storage: Storage) -> None:
    ask(broker, ROOT, CREATE)
    before = await written_records(broker, storage.clock, 1)
    [published] = await publish(broker, (AUDIT_TOPIC, 0))
    assert published.error is not None
    assert published.error.kind is ErrorKind.INVALID_TOPIC
    [result] = await broker.produce.messages.publish(ROOT, AUDIT_TOPIC, [OutgoingMessage(b"{}")])
    assert isinstance(result, RequestError)
    compacted = ConfigChange(name="cleanup.policy", operation=Operation.SET, value="compact")
    for work in (
        broker.topics.delete(ROOT, AUDIT_TOPIC),
        broker.topics.add_partitions(ROOT, AUDIT_TOPIC, 3, None),
        broker.partitions.retention.delete_records(ROOT, AUDIT_TOPIC, 0, 1, 100),
        broker.topics.change_config(ROOT, AUDIT_TOPIC, [compacted]),
    ):
        with pytest.raises(RequestError, match=r"broker's own|cannot be changed"):
            await work
    await broker.topics.change_config(
        ROOT, AUDIT_TOPIC, [ConfigChange(name="retention.ms", operation=Operation.SET, value=str(30 * 86_400_000))]
    )
    assert await audit_records(broker) == before


async def test_brokers_write_to_no_other_internal_topic(broker: BrokerNode) -> None:
    await broker.topics.ensure(CALLER, TopicRequest(name="__consumer_offsets"))
    own = broker._services.own_caller
    [result] = await broker.produce.messages.publish(own, "__consumer_offsets", [OutgoingMessage(b"x")])
    assert isinstance(result, RequestError)


async def test_events_of_the_last_second_are_written_at_the_stop(storage: Storage) -> None:
    async with running_parts(SETTINGS, storage) as broker:
        await broker.clients.access.add(ROOT, [ALLOWED])
        for _ in range(3):
            ask(broker, ALICE, READ)
        ask(broker, ALICE, WRITE)
        audit = audit_of(broker)
    assert (audit.written, audit.dropped.total()) == (4, 0)
    async with running_parts(SETTINGS, storage) as broker:
        assert [(event["operation"], event["count"]) for event in await audit_records(broker)] == [
            ("Read", 1), ("Write", 1), ("Read", 2),
        ]  # fmt: skip
    assert not ask(broker, ALICE, WRITE)
    assert +audit_of(broker).dropped == {"stopped": 1}


async def test_a_full_disk_keeps_events_waiting_and_says_so(
    broker: BrokerNode, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    ask(broker, ROOT, CREATE)
    await written_records(broker, storage.clock, 1)
    storage.disk.faults.free_bytes = 0
    assert ask(broker, ROOT, DELETE)
    await with_time(storage.clock, lambda: "audit not written" in caplog.text)
    for _ in range(3):
        assert ask(broker, ROOT, DELETE)
        await asyncio.sleep(0)
    storage.disk.faults.heal()
    events = await written_records(broker, storage.clock, 5)
    assert [event["operation"] for event in events] == ["Create", "Delete", "Delete", "Delete", "Delete"]
    assert caplog.text.count("audit not written") == 1
    assert audit_of(broker).dropped.total() == 0


async def test_events_without_room_are_dropped_and_counted_and_administration_last(
    broker: BrokerNode, storage: Storage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_BURST_SECONDS", 1_000_000)

    async def fail(*_: object) -> None:
        raise RequestError(ErrorKind.NOT_ENOUGH_REPLICAS, "the disk is full")

    monkeypatch.setattr(broker.topics, "ensure", fail)
    audit, number = audit_of(broker), 0
    while audit.waiting_count == number:
        number += 1
        ask(broker, ROOT, READ, f"t-{number}")
    assert number < MAX_WAITING_BYTES / 2 / 600
    while not audit.dropped.total():
        number += 1
        ask(broker, ALICE, READ, f"t-{number}")
    assert audit.waiting_count == number - 2, "one read is counted only, and one refusal dropped"
    assert ask(broker, ROOT, CREATE)
    assert +audit.dropped == {"memory": 1}
    storage.clock.advance(seconds=60)
    assert "audit incomplete dropped=1 total: memory=1 " in caplog.text
    ask(broker, ALICE, READ, "one more")
    storage.clock.advance(seconds=59)
    assert caplog.text.count("audit incomplete") == 1
    storage.clock.advance(seconds=1)
    assert "audit incomplete dropped=1 total: memory=2 " in caplog.text
    while audit.dropped["memory"] == 2:
        assert ask(broker, ROOT, CREATE)


async def test_denials_are_bounded_by_their_bytes_a_second_and_administration_is_not(
    broker: BrokerNode, storage: Storage
) -> None:
    audit, number = audit_of(broker), 0
    while not audit.dropped.total():
        number += 1
        ask(broker, ALICE, WRITE, f"t-{number}")
    assert +audit.dropped == {"rate": 1}
    assert 16_384 * 60 / 400 < number < 16_384 * 60 / 200
    assert ask(broker, ROOT, CREATE)
    assert ask(broker, ROOT, READ), "reads have bytes of their own"
    assert +audit.dropped == {"rate": 1}
    storage.clock.advance(seconds=1)
    ask(broker, ALICE, WRITE, "later")
    assert +audit.dropped == {"rate": 1}
    await with_time(storage.clock, lambda: audit.written == number + 2)


async def test_reads_that_exceed_their_bytes_a_second_are_shown_in_a_later_minute(
    broker: BrokerNode, storage: Storage
) -> None:
    audit, number = audit_of(broker), 0
    while audit.waiting_count == number:
        number += 1
        ask(broker, ROOT, READ, f"t-{number}")
    for again in range(number):
        ask(broker, ROOT, READ, f"t-{again + 1}")
    for _ in range(4):
        storage.clock.advance(ms=SAMPLE_MS)
        await with_time(storage.clock, lambda: audit.waiting_count == 0)
    events = await written_records(broker, storage.clock, 2 * number)
    assert {event["resource"] for event in events} == {f"t-{again + 1}" for again in range(number)}
    assert audit.dropped.total() == 0


async def test_kinds_of_reads_are_bounded(broker: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "MAX_SAMPLES", 2)
    for name in ("a", "b", "c", "c", "a"):
        assert ask(broker, ROOT, READ, name)
    assert +audit_of(broker).dropped == {"memory": 2}


async def test_long_names_are_shortened_and_not_kept(broker: BrokerNode, storage: Storage) -> None:
    name = "n" * 20_000
    for _ in range(2):
        assert broker.clients.access.permits(ROOT, "Api", READ, ResourceType.GROUP, name)
        assert not broker.clients.access.permits(ALICE, "Api", READ, ResourceType.GROUP, name)
    events = await written_records(broker, storage.clock, 4)
    assert {event["resource"] for event in events} == {f"{name[:MAX_NAME_CHARACTERS]}..."}


async def test_records_that_the_topic_refuses_are_dropped(
    broker: BrokerNode, storage: Storage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = RequestError(ErrorKind.MESSAGE_TOO_LARGE, "too large")

    async def refuse(*_: object) -> list[RequestError]:
        return [refusal]

    monkeypatch.setattr(broker.produce.messages, "publish", refuse)
    ask(broker, ROOT, CREATE)
    audit = audit_of(broker)
    await with_time(storage.clock, lambda: audit.dropped.total() == 1)
    assert +audit.dropped == {"refused": 1}
    assert "audit not written" in caplog.text


async def test_no_setting_lets_the_topic_refuse_events(broker: BrokerNode, storage: Storage) -> None:
    ask(broker, ROOT, CREATE)
    await written_records(broker, storage.clock, 1)
    small = ConfigChange(name="max.message.bytes", operation=Operation.SET, value="1")
    with pytest.raises(RequestError, match="cannot be changed"):
        await broker.topics.change_config(ROOT, AUDIT_TOPIC, [small])


async def test_what_brokers_publish_for_clients_does_not_reach_the_audit(broker: BrokerNode, storage: Storage) -> None:
    """Otherwise a subscription whose dead-letter topic it is could forge events."""
    ask(broker, ROOT, CREATE)
    before = await written_records(broker, storage.clock, 1)
    own = broker._services.own_caller
    [result] = await broker.produce.messages.publish(own, AUDIT_TOPIC, [OutgoingMessage(b"{}")])
    assert isinstance(result, RequestError)
    assert await audit_records(broker) == before


async def test_a_stop_does_not_wait_for_a_topic_that_cannot_be_written(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async with running_parts(SETTINGS | {"network.drain_timeout_ms": 20}, storage) as broker:
        monkeypatch.setattr(broker.topics, "ensure", hang)
        ask(broker, ROOT, CREATE)
        audit = audit_of(broker)
    assert +audit.dropped == {"stopped": 1}
    assert "the broker stops" in caplog.text


async def test_a_broker_writes_to_the_leader_wherever_it_is() -> None:
    async with two_brokers(SETTINGS | {"access.audit_replication_factor": 1}) as brokers:
        await brokers.create(AUDIT_TOPIC, TWO)
        if brokers.one.metadata.image.topics[AUDIT_TOPIC].partitions[0].leader != TWO:
            await brokers.move(AUDIT_TOPIC, 0, TWO)
        ask(brokers.one, ROOT, CREATE)
        [event] = await brokers.with_time(written_records(brokers.one, brokers.clock, 1))
        assert event["broker"] == 1


async def test_a_sampled_decision_costs_a_look_into_a_dictionary(broker: BrokerNode) -> None:
    await broker.clients.access.add(ROOT, [ALLOWED])

    async def read(count: int) -> None:
        for _ in range(count):
            ask(broker, ALICE, READ)

    await read(1)
    with_audit = await calls_of(read(200)) - await calls_of(read(100))
    broker.clients.access.audit = None
    without = await calls_of(read(200)) - await calls_of(read(100))
    assert with_audit - without <= 200, "`note`, and the look into the dictionary"


async def test_a_failed_start_of_the_topic_is_tried_again(
    broker: BrokerNode, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.store.is_full = True
    ask(broker, ROOT, CREATE)
    storage.clock.advance(seconds=1)
    await asyncio.sleep(0.01)
    storage.store.is_full = False
    await written_records(broker, storage.clock, 1)
