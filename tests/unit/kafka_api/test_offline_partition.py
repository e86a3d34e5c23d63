"""Requests for a partition that is offline because the disk is full."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kernel.errors import DiskFull, RequestError
from conveyor.log.log import Log
from conveyor.records.record import encode_batch
from tests.callers import CALLER
from tests.unit.broker.parts import Storage
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.illegal_log_requests import (
    delete_records,
    describe_producers,
    epoch_end,
    fetch,
    idempotent,
    list_offsets,
    produce,
)
from tests.unit.kafka_api.illegal_row import Values, errors_in
from tests.unit.kafka_api.illegal_world import record_batch
from tests.unit.kafka_api.requests import produce as kafka_produce

WITH_ID = encode_batch([(1, b"key", b"value", [("conveyor-dedup-id", b"1")])])


def fail(client: MemoryClient) -> "weakref.ref[Log]":
    """Let the partition of `t` go offline. Returns a reference that does not keep its log."""
    partition = client.broker.partitions.table.find("t", 0)
    partition.go_offline(DiskFull("no room"))
    return weakref.ref(partition.log)


async def until_online(client: MemoryClient, storage: Storage) -> None:
    while client.broker.partitions.table.offline_reason("t", 0) is not None:
        storage.clock.advance(ms=1)
        await asyncio.sleep(0)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Free only what nothing refers to, and no cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    ("api_key", "version", "values"),
    [
        pytest.param(0, 12, produce(), id="produce"),
        pytest.param(0, 12, produce(acks=1), id="produce with acks 1"),
        pytest.param(0, 12, produce(idempotent()), id="produce with a sequence"),
        pytest.param(0, 12, produce(WITH_ID), id="produce with a dedup id"),
        pytest.param(1, 12, fetch(), id="fetch"),
        pytest.param(2, 11, list_offsets(), id="list offsets"),
        pytest.param(2, 11, list_offsets(timestamp=1), id="list offsets by time"),
        pytest.param(21, 2, delete_records(), id="delete records"),
        pytest.param(23, 4, epoch_end(), id="offset for leader epoch"),
        pytest.param(61, 0, describe_producers(), id="describe producers"),
    ],
)
async def test_refused_request_keeps_no_file_of_the_failed_log_open(
    client: MemoryClient, storage: Storage, api_key: int, version: int, values: Values
) -> None:
    """Files that are deleted meanwhile would still take up space on the disk."""
    failed_log = fail(client)
    assert errors_in(await client.ask(api_key, version, **values))
    await until_online(client, storage)
    assert failed_log() is None


@pytest.mark.usefixtures("no_collection")
async def test_refused_message_keeps_no_file_of_the_failed_log_open(client: MemoryClient, storage: Storage) -> None:
    failed_log = fail(client)
    [refused] = await client.broker.produce.messages.publish(CALLER, "t", [OutgoingMessage(b"value")])
    assert isinstance(refused, RequestError)
    del refused
    await until_online(client, storage)
    assert failed_log() is None


@pytest.mark.usefixtures("no_collection")
async def test_append_that_finds_the_disk_full_keeps_no_file_of_the_log_open(
    client: MemoryClient, storage: Storage
) -> None:
    """The second batch closes the segment, and therefore writes the first one."""
    change = ConfigChange(name="segment.bytes", operation=Operation.SET, value="1024")
    await client.broker.topics.change_config(CALLER, "t", [change])
    failed_log = weakref.ref(client.broker.partitions.table.find("t", 0).log)
    storage.disk.faults.free_bytes = 0
    client.send(*[kafka_produce(number, record_batch(bytes(1000))) for number in (1, 2)])
    assert [await client.next_id(), await client.next_id()] == [1, 2]
    storage.disk.faults.free_bytes = None
    await until_online(client, storage)
    assert failed_log() is None
