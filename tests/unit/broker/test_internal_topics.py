"""Internal topics have their mandatory settings, whether a client or the broker creates them, and after a restart."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from uuid import uuid4

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.changes import topic_put
from conveyor.cluster.image import DELAY_STATE, OFFSETS_TOPIC, QUEUE_STATE, TRANSACTIONS_TOPIC, companion
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicId
from conveyor.records.checked_batch import own_batch
from conveyor.settings.topic_settings import TopicSettings
from tests.callers import CALLER
from tests.unit.broker.parts import BATCH, Storage, publish, running_parts

ORDINARY = {"cleanup.policy": "delete", "retention.ms": "1000"}
OFFSETS = {"cleanup_policy": "compact", "flush_policy": "ack", "max_message_bytes": (1 << 31) - 1}
COMPANION = {
    "cleanup_policy": "delete", "flush_policy": "ack", "max_message_bytes": (1 << 31) - 1, "retention_ms": -1,
    "retention_bytes": -1,
}  # fmt: skip


def in_force(settings: TopicSettings, names: Mapping[str, object]) -> dict[str, object]:
    return {name: getattr(settings, name) for name in names}


def settings_of(broker: BrokerNode, name: str) -> TopicSettings:
    return broker.partitions.table.find(name, 0).log.topic


async def store_wrong(storage: Storage, name: str, partitions: int) -> None:
    """Store a topic as an earlier client request created it."""
    async with running_parts(storage=storage) as broker:
        ordinary = await broker.topics.create(
            CALLER, TopicRequest(name="ordinary", partitions=partitions, config=ORDINARY)
        )
        wrong = replace(ordinary, name=name, topic_id=TopicId(uuid4()))
        await broker.metadata.propose(lambda _: [topic_put(wrong)])


@pytest.mark.parametrize("method", ["create", "ensure"])
async def test_offsets_topic_that_a_client_asks_for_is_compacted(broker: BrokerNode, method: str) -> None:
    request = TopicRequest(name=OFFSETS_TOPIC, partitions=1, config=ORDINARY)
    topic = await getattr(broker.topics, method)(CALLER, request)
    assert len(topic.partitions) == broker.settings.groups.offsets_partitions
    assert in_force(settings_of(broker, OFFSETS_TOPIC), OFFSETS) == OFFSETS
    assert await broker.coordinators.groups.ensured() == topic


async def test_offsets_topic_ignores_an_assignment(broker: BrokerNode) -> None:
    topic = await broker.topics.create(CALLER, TopicRequest(name=OFFSETS_TOPIC, assignment={0: [1]}))
    assert len(topic.partitions) == 8


@pytest.mark.parametrize("kind", [QUEUE_STATE, DELAY_STATE])
async def test_companion_keeps_every_record_whatever_the_defaults(storage: Storage, kind: str) -> None:
    async with running_parts({"topics.retention_bytes": 1, "topics.retention_ms": 1}, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.topics.ensure_companion(kind, "t")
        config = settings_of(broker, companion(kind, "t"))
        assert (config.retention_bytes, config.retention_ms) == (-1, -1)
        with pytest.raises(RequestError) as refused:
            await broker.topics.create(CALLER, TopicRequest(name=companion(kind, "other")))
        assert refused.value.kind is ErrorKind.INVALID_TOPIC


@pytest.mark.parametrize(
    ("name", "expected"), [(OFFSETS_TOPIC, OFFSETS), (companion(QUEUE_STATE, "ordinary"), COMPANION)]
)
async def test_wrong_settings_are_mended_at_the_start(
    storage: Storage, name: str, expected: Mapping[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    await store_wrong(storage, name, partitions=8)
    with caplog.at_level(logging.WARNING):
        async with running_parts(storage=storage) as broker:
            assert in_force(settings_of(broker, name), expected) == expected
    assert f"topic settings mended name={name}" in caplog.text
    caplog.clear()
    async with running_parts(storage=storage) as broker:
        assert in_force(settings_of(broker, name), expected) == expected
    assert caplog.text == "", "the settings are correct"


async def test_offsets_topic_without_a_record_gets_its_partitions(storage: Storage) -> None:
    await store_wrong(storage, OFFSETS_TOPIC, partitions=1)
    async with running_parts(storage=storage) as broker:
        assert len(broker.topics.existing(OFFSETS_TOPIC).partitions) == 8
        await broker.coordinators.groups.find_coordinator(CALLER, "g")


@pytest.mark.parametrize(("partitions", "written"), [(1, True), (9, False)])
async def test_offsets_topic_keeps_partitions_that_may_hold_groups(
    storage: Storage, partitions: int, written: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await store_wrong(storage, OFFSETS_TOPIC, partitions)
    if written:
        async with running_parts({"groups.offsets_partitions": partitions}, storage) as broker:
            partition = broker.partitions.table.find(OFFSETS_TOPIC, partition_for_key("g", partitions))
            partition.append(own_batch(BATCH), storage.clock.now_ms())
            await publish(broker, ("ordinary", 0))
    async with running_parts(storage=storage) as broker:
        assert len(broker.topics.existing(OFFSETS_TOPIC).partitions) == partitions
    assert f"topic partitions kept name={OFFSETS_TOPIC} partitions={partitions}" in caplog.text


async def test_no_client_changes_what_the_offsets_topic_must_have(broker: BrokerNode) -> None:
    await broker.coordinators.groups.ensured()
    for value in ("delete", "compact,delete"):
        change = ConfigChange(name="cleanup.policy", operation=Operation.SET, value=value)
        with pytest.raises(RequestError, match="cannot be changed") as refused:
            await broker.topics.change_config(CALLER, OFFSETS_TOPIC, [change])
        assert refused.value.kind is ErrorKind.INVALID_CONFIG
    await broker.topics.change_config(
        CALLER, OFFSETS_TOPIC, [ConfigChange(name="cleanup.policy", operation=Operation.DELETE)]
    )
    await broker.topics.replace_config(CALLER, OFFSETS_TOPIC, {"delete.retention.ms": "5"})
    assert in_force(settings_of(broker, OFFSETS_TOPIC), OFFSETS) == OFFSETS
    assert settings_of(broker, OFFSETS_TOPIC).delete_retention_ms == 5


async def test_transaction_state_is_flushed_unless_the_operator_says_otherwise(storage: Storage) -> None:
    async with running_parts({"transactions.state_flush_policy": "os"}, storage) as broker:
        await broker.coordinators.transactions.find_coordinator(CALLER, "t")
        assert settings_of(broker, TRANSACTIONS_TOPIC).flush_policy == "os"
    async with running_parts(storage=storage) as broker:
        assert settings_of(broker, TRANSACTIONS_TOPIC).flush_policy == "os"
        change = ConfigChange(name="flush.policy", operation=Operation.DELETE)
        await broker.topics.change_config(CALLER, TRANSACTIONS_TOPIC, [change])
        assert settings_of(broker, TRANSACTIONS_TOPIC).flush_policy == "ack"
        change = ConfigChange(name="flush.policy", operation=Operation.SET, value="os")
        await broker.topics.change_config(CALLER, TRANSACTIONS_TOPIC, [change])
        assert settings_of(broker, TRANSACTIONS_TOPIC).flush_policy == "os"


async def test_committed_offsets_are_always_flushed(broker: BrokerNode) -> None:
    await broker.coordinators.groups.ensured()
    with pytest.raises(RequestError, match="cannot be changed"):
        await broker.topics.change_config(
            CALLER, OFFSETS_TOPIC, [ConfigChange(name="flush.policy", operation=Operation.SET, value="os")]
        )
