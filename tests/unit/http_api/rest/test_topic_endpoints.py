"""Topics over HTTP, of a broker that is one of three."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.image import NO_LEADER
from conveyor.http.endpoints.endpoint import NoQuery
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.rest.topic_endpoints import NewTopic, PartitionDocument, create_topic, show_topic
from conveyor.kernel.errors import ErrorKind, RequestError
from tests.callers import CALLER
from tests.unit.broker.other_brokers import join, join_two, other_broker, put_partition
from tests.unit.broker.parts import publish, running_parts
from tests.unit.broker.two_brokers import two_brokers
from tests.unit.cluster.controller.clusters import partition as assigned


@pytest.fixture
async def broker() -> AsyncIterator[BrokerNode]:
    async with running_parts() as broker:
        await join_two(broker)
        yield broker


def call(broker: BrokerNode, body: Any = None, **names: str) -> HttpCall[NoQuery, Any]:
    door: Any = SimpleNamespace(broker=broker, rights=None)
    exchange: Any = SimpleNamespace(caller=CALLER, meter=None)
    return HttpCall(door, exchange, names, NoQuery(), body)


async def partitions(broker: BrokerNode) -> list[PartitionDocument]:
    return (await show_topic(call(broker, topic="t"))).partition_states


async def test_topic_has_as_many_replicas_as_requested(broker: BrokerNode) -> None:
    await create_topic(call(broker, NewTopic("t", partitions=1, replicas=3)))
    [shown] = await partitions(broker)
    assert (shown.leader, shown.leader_epoch, shown.replicas, shown.in_sync_replicas) == (1, 0, [1, 2, 3], [1, 2, 3])
    with pytest.raises(RequestError) as refused:
        await create_topic(call(broker, NewTopic("more", replicas=4)))
    assert refused.value.kind is ErrorKind.INVALID_REPLICATION_FACTOR


async def test_offsets_are_null_if_the_leader_does_not_answer(broker: BrokerNode) -> None:
    await create_topic(call(broker, NewTopic("t", partitions=3)))
    await put_partition(broker, "t", 1, assigned((2, 1)))
    await put_partition(broker, "t", 2, assigned((3, 2), (3,), NO_LEADER))
    await publish(broker, ("t", 0))
    shown = await partitions(broker)
    assert [(item.leader, item.log_start_offset, item.high_watermark) for item in shown] == [
        (1, 0, 1),
        (2, None, None),
        (None, None, None),
    ]
    await join(broker, other_broker(3, is_fenced=True))
    assert [item.offline_replicas for item in await partitions(broker)] == [[], [], [3]]


async def test_offsets_come_from_the_leaders() -> None:
    async with two_brokers() as brokers:
        await publish(brokers.two, ("t", 1))
        for broker in (brokers.one, brokers.two):
            shown = (await show_topic(call(broker, topic="t"))).partition_states
            assert [(item.leader, item.high_watermark) for item in shown] == [(1, 0), (2, 1)]
