"""A delayed topic whose log begins again, without what its forwarder knows of, forwards all messages from then on."""

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators.forwarders import Forwarders
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.controller.elections import ElectionRequest
from conveyor.cluster.controller.partition_transition import Election
from tests.callers import CALLER
from tests.unit.broker.coordinators.test_forwarders import (
    DELAYED,
    TARGET,
    after,
    create,
    delayed,
    send,
    settled,
    target_has,
    values,
)
from tests.unit.broker.parts import Storage, running_parts


async def give_up(broker: BrokerNode) -> None:
    """Begin the lost log again."""
    election = ElectionRequest(topic=TARGET, partition=0, election=Election.UNCLEAN)
    assert await broker.topics.operations.elect(CALLER, [election]) == [None]


async def at_rest(broker: BrokerNode, storage: Storage) -> None:
    await broker.coordinators.forwarders.loaded(delayed(broker))
    await settled(broker, storage)


async def test_messages_in_the_place_of_lost_ones_are_forwarded(storage: Storage) -> None:
    """The delayed topic begins again, and its log has fewer messages than its state knows, or other ones."""
    async with running_parts(storage=storage) as broker:
        await create(broker)
        await send(broker, *[OutgoingMessage(value=b"old-%d" % number) for number in range(10)])
        await target_has(broker, 10)
        await at_rest(broker, storage)
    storage.disk.remove_tree(f"logs/{DELAYED}-0")
    async with running_parts(storage=storage) as broker:
        await give_up(broker)
        await send(broker, after(500, b"new-2"), OutgoingMessage(value=b"new-1"))
        assert (await values(broker, 11))[10:] == [b"new-1"]
    async with running_parts(storage=storage) as broker:
        storage.clock.advance(ms=500)
        assert (await values(broker, 12))[10:] == [b"new-1", b"new-2"]
        await at_rest(broker, storage)


async def test_messages_are_forwarded_once_although_their_log_begins_again(storage: Storage) -> None:
    """The forwarder is not loaded before the next start."""
    async with running_parts(storage=storage) as broker:
        await create(broker)
        await send(broker, OutgoingMessage(value=b"old-1"), OutgoingMessage(value=b"old-2"))
        await target_has(broker, 2)
        storage.disk = storage.disk.process_crash()
    storage.disk.remove_tree(f"logs/{DELAYED}-0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Forwarders, "gained", lambda *_: None)
        async with running_parts(storage=storage) as broker:
            await give_up(broker)
            await send(broker, *[OutgoingMessage(value=b"new-%d" % number) for number in range(3)])
            storage.disk = storage.disk.process_crash()
    for _ in range(2):
        async with running_parts(storage=storage) as broker:
            assert (await values(broker, 5))[2:] == [b"new-0", b"new-1", b"new-2"]
            await at_rest(broker, storage)
