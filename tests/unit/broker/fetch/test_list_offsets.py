"""Finding offsets by name and by time."""

import asyncio

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.fetch.list_offsets import EARLIEST, EARLIEST_LOCAL, LATEST, NEWEST_TIMESTAMP
from conveyor.broker.produce.publisher import ACKS_ALL
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.records.record import encode_batch
from tests.callers import CALLER

TIMES = (1000, 3000, 2000)


@pytest.fixture
async def filled(broker: BrokerNode) -> BrokerNode:
    """Three records in a batch each; the second has the newest timestamp."""
    for time_ms in TIMES:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        broker.produce.publisher.publish(
            CALLER, [("t", 0, encode_batch([(time_ms, None, b"x", [])]))], ACKS_ALL, done.set_result
        )
        await done
    return broker


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (LATEST, (3, -1, 0)),
        (EARLIEST, (0, -1, 0)),
        (EARLIEST_LOCAL, (0, -1, 0)),
        (NEWEST_TIMESTAMP, (1, 3000, 0)),
        (0, (0, 1000, 0)),
        (1000, (0, 1000, 0)),
        (1001, (1, 3000, 0)),
        (3001, (-1, -1, 0)),
    ],
)
async def test_an_offset_is_found(filled: BrokerNode, asked: int, found: tuple[int, int, int]) -> None:
    assert await filled.fetch.offsets.find(CALLER, "t", 0, asked, -1) == found


async def test_epoch_is_that_of_the_record(filled: BrokerNode) -> None:
    """A consumer asks for the end of the epoch of its position when there is a new leader (KIP-320)."""
    filled.partitions.table.find("t", 0).log.leader_epochs.assign(5, 1)
    assert await filled.fetch.offsets.find(CALLER, "t", 0, EARLIEST, -1) == (0, -1, 0)
    assert await filled.fetch.offsets.find(CALLER, "t", 0, 1000, -1) == (0, 1000, 0)
    assert await filled.fetch.offsets.find(CALLER, "t", 0, NEWEST_TIMESTAMP, -1) == (1, 3000, 5)


async def test_an_empty_partition_has_no_offset_at_any_time(broker: BrokerNode) -> None:
    assert await broker.fetch.offsets.find(CALLER, "t", 1, NEWEST_TIMESTAMP, -1) == (-1, -1, 0)
    assert await broker.fetch.offsets.find(CALLER, "t", 1, LATEST, 0) == (0, -1, 0)


@pytest.mark.parametrize(
    ("topic", "asked", "epoch", "kind"),
    [
        ("nothing", LATEST, -1, ErrorKind.UNKNOWN_TOPIC),
        ("t", -7, -1, ErrorKind.UNSUPPORTED_VERSION),
        ("t", LATEST, 1, ErrorKind.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_what_cannot_be_found_is_refused(
    broker: BrokerNode, topic: str, asked: int, epoch: int, kind: ErrorKind
) -> None:
    with pytest.raises(RequestError) as refused:
        await broker.fetch.offsets.find(CALLER, topic, 0, asked, epoch)
    assert refused.value.kind is kind


@pytest.mark.parametrize("asked", [LATEST, EARLIEST, NEWEST_TIMESTAMP, 1000])
async def test_an_offline_leader_tells_no_offset(filled: BrokerNode, asked: int) -> None:
    filled.partitions.table.find("t", 0).go_offline(StorageFailure("the disk fails"))
    with pytest.raises(RequestError) as refused:
        await filled.fetch.offsets.find(CALLER, "t", 0, asked, -1)
    assert refused.value.kind is ErrorKind.PARTITION_OFFLINE
