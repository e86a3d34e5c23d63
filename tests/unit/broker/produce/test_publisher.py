"""Publishing: the result of each batch, and when it arrives."""

from collections.abc import Sequence

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.publisher import ACKS_ALL, ACKS_LEADER, ACKS_NONE, Published
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, InconsistentState, RequestError, StorageFailure
from conveyor.kernel.ports import Bytes
from conveyor.records.checked_batch import CheckedBatch, check_batch, own_batch
from conveyor.records.record import encode_batch
from tests.callers import CALLER
from tests.unit.broker.parts import BATCH, NOW_MS, Storage, publish


def kinds(results: Sequence[Published]) -> list[ErrorKind | None]:
    return [None if result.error is None else result.error.kind for result in results]


async def test_publish_to_several_partitions_answers_in_order(broker: BrokerNode) -> None:
    await publish(broker, ("t", 1))
    results = await publish(broker, ("t", 0), ("t", 1), ("t", 0))
    assert [result.base_offset for result in results] == [0, 1, 1]
    assert [result.append_timestamp_ms for result in results] == [-1, -1, -1]


async def test_publish_reports_the_failure_of_one_partition_only(broker: BrokerNode) -> None:
    results = await publish(broker, ("t", 0), ("t", 9), ("nothing", 0), ("__consumer_offsets", 0))
    assert kinds(results) == [None, ErrorKind.UNKNOWN_TOPIC, ErrorKind.UNKNOWN_TOPIC, ErrorKind.INVALID_TOPIC]


async def test_publish_with_acks_all_is_told_when_records_are_visible(broker: BrokerNode) -> None:
    await publish(broker, ("t", 0))
    assert broker.partitions.table.find("t", 0).term.high_watermark == 1


async def test_publish_with_acks_leader_does_not_wait_for_the_disk(broker: BrokerNode, storage: Storage) -> None:
    storage.disk.faults.fail("sync")
    assert kinds(await publish(broker, ("t", 0), acks=ACKS_LEADER)) == [None]


async def test_bug_in_the_check_of_a_batch_is_the_error_of_this_batch(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checks: list[object] = []

    def fail_second(produced: Bytes, max_bytes: int) -> CheckedBatch:
        checks.append(produced)
        if len(checks) == 2:
            raise KeyError("a bug")
        return check_batch(produced, max_bytes)

    monkeypatch.setattr("conveyor.broker.produce.publisher.check_batch", fail_second)
    results = await publish(broker, ("t", 0), ("t", 1), ("t", 0))
    assert kinds(results) == [None, ErrorKind.UNKNOWN_SERVER_ERROR, None]
    assert "Traceback" in caplog.text


async def test_bug_in_an_append_stops_the_broker(broker: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(broker.partitions.table.find("t", 0).log, "append", fail)
    with pytest.raises(InconsistentState):
        await publish(broker, ("t", 0))


async def test_publish_with_acks_none_is_answered_within_the_call(broker: BrokerNode) -> None:
    answers: list[Sequence[Published]] = []
    broker.produce.publisher.publish(CALLER, [("t", 0, BATCH)], ACKS_NONE, answers.append)
    assert kinds(answers[0]) == [None]


async def test_publish_refuses_other_acks(broker: BrokerNode) -> None:
    with pytest.raises(RequestError, match="not 2") as refused:
        await publish(broker, ("t", 0), acks=2)
    assert refused.value.kind is ErrorKind.INVALID_REQUIRED_ACKS


async def test_publish_of_nothing_is_answered(broker: BrokerNode) -> None:
    assert await publish(broker) == []


async def test_a_batch_that_is_missing_is_refused(broker: BrokerNode) -> None:
    answers: list[Sequence[Published]] = []
    broker.produce.publisher.publish(CALLER, [("t", 0, None)], ACKS_ALL, answers.append)
    assert kinds(answers[0]) == [ErrorKind.INVALID_RECORD]


async def test_publish_says_when_the_broker_stamped_the_records(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="stamped", config={"message.timestamp.type": "LogAppendTime"}))
    results = await publish(broker, ("stamped", 0))
    assert results[0].append_timestamp_ms == NOW_MS


async def test_acks_all_needs_the_replicas_that_the_topic_wants(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="careful", config={"min.insync.replicas": "2"}))
    assert kinds(await publish(broker, ("careful", 0))) == [ErrorKind.NOT_ENOUGH_REPLICAS]
    assert kinds(await publish(broker, ("careful", 0), acks=ACKS_LEADER)) == [None]


@pytest.mark.parametrize("fault", ["append", "sync"])
async def test_a_failing_disk_is_told_to_the_publisher(broker: BrokerNode, storage: Storage, fault: str) -> None:
    storage.disk.faults.fail(fault)
    assert kinds(await publish(broker, ("t", 0))) == [ErrorKind.PARTITION_OFFLINE]
    assert fault in broker.partitions.table.offline()["t-0"]
    assert kinds(await publish(broker, ("t", 0))) == [ErrorKind.PARTITION_OFFLINE]


async def test_partition_that_is_offline_says_so_before_a_damaged_batch(broker: BrokerNode) -> None:
    broker.partitions.table.find("t", 0).go_offline(StorageFailure("broken"))
    answers: list[Sequence[Published]] = []
    broker.produce.publisher.publish(CALLER, [("t", 0, BATCH[:-1])], ACKS_ALL, answers.append)
    assert kinds(answers[0]) == [ErrorKind.PARTITION_OFFLINE]


async def test_wrong_sequence_is_refused_before_records_from_the_future(broker: BrokerNode) -> None:
    answers: list[Sequence[Published]] = []
    for sequence, at_ms in ((0, NOW_MS), (2, NOW_MS + 3_600_001), (1, NOW_MS + 3_600_001)):
        batch = encode_batch([(at_ms, None, b"v", ())], producer_id=1, producer_epoch=0, base_sequence=sequence)
        broker.produce.publisher.publish(CALLER, [("t", 0, batch)], ACKS_NONE, answers.append)
    assert [kinds(results) for results in answers] == [
        [None],
        [ErrorKind.OUT_OF_ORDER_SEQUENCE],
        [ErrorKind.INVALID_TIMESTAMP],
    ]


async def test_own_batch_is_too_large_for_its_topic_as_any(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="small", config={"max.message.bytes": "70"}))
    for batch in (BATCH, own_batch(BATCH)):
        answers: list[Sequence[Published]] = []
        broker.produce.publisher.publish(CALLER, [("small", 0, batch)], ACKS_ALL, answers.append)
        assert kinds(answers[0]) == [ErrorKind.MESSAGE_TOO_LARGE]
