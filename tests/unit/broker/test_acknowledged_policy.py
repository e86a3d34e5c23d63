"""`cleanup.policy=acknowledged` deletes only records that every subscription has settled."""

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER, answer_of
from tests.unit.broker.parts import running_parts

CONFIG = {"cleanup.policy": "acknowledged", "segment.bytes": "1024", "retention.ms": "1"}
EARLIEST = StartPosition(kind="earliest")


async def settle_all(broker: BrokerNode, name: str) -> None:
    leases = await broker.queues.leases.lease(CALLER, name, 100, 0, None)
    await answer_of(broker.queues.settlements.ack, CALLER, name, [lease.ack_id for lease in leases])


@pytest.mark.parametrize("names", [(), ("one",), ("one", "two")])
async def test_segments_go_once_every_subscription_has_settled_them(names: tuple[str, ...]) -> None:
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1, config=CONFIG))
        for name in names:
            await broker.queues.lifecycle.create(CALLER, "t", name, EARLIEST, {})
        for _ in range(10):
            await broker.produce.messages.publish(CALLER, "t", [OutgoingMessage(value=bytes(600))])
        log = broker.partitions.table.find("t", 0).log
        for name in names:
            await broker.partitions.retention.run_once()
            assert log.log_start_offset == 0
            await settle_all(broker, name)
        await broker.partitions.retention.run_once()
        assert (log.log_start_offset > 0) == bool(names)
