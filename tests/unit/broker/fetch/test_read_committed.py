"""Fetch, fetch sessions and ListOffsets for consumers of committed records."""

import asyncio
from functools import partial

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.fetch.fetch_sessions import SessionPartition
from conveyor.broker.fetch.fetcher import Fetched, FetchPosition, FetchWait
from conveyor.broker.fetch.list_offsets import LATEST, NEWEST_TIMESTAMP
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import append_marker
from tests.callers import CALLER
from tests.unit.broker.fetch.test_fetcher import at, fetch_now, start_fetch
from tests.unit.broker.parts import NOW_MS, publish

AT_ONCE = FetchWait(0, 1, 1 << 20, reads_committed=True)
PATIENT = FetchWait(500, 1, 1 << 20, reads_committed=True)


async def open_transaction(broker: BrokerNode) -> Partition:
    """A plain record, then one of an open transaction."""
    await publish(broker, ("t", 0))
    partition = broker.partitions.table.find("t", 0)
    content = encode_batch(
        [(NOW_MS + 5, None, b"v", ())], attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0, base_sequence=0
    )
    partition.append(own_batch(content), NOW_MS)
    await committed(broker, partition)
    return partition


async def committed(broker: BrokerNode, partition: Partition) -> None:
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    partition.term.when_committed(partition.log.log_end_offset, done.set_result)
    assert await done is None


def end(partition: Partition, *, commits: bool) -> None:
    marker = TransactionMarker(producer_id=7, producer_epoch=0, coordinator_epoch=0, commits=commits)
    assert append_marker(partition, marker, 1, NOW_MS) is not None


async def test_fetch_stops_at_the_open_transaction(broker: BrokerNode) -> None:
    await open_transaction(broker)
    [whole] = fetch_now(broker, at(0, 0))
    [stable] = fetch_now(broker, at(0, 0), wait=AT_ONCE)
    assert whole.records is not None
    assert stable.records is not None
    assert stable.records.length < whole.records.length
    assert (stable.high_watermark, stable.last_stable_offset) == (2, 1)
    assert whole.last_stable_offset == 1


async def test_whole_search_is_refused_while_a_transaction_hides_messages(broker: BrokerNode) -> None:
    """A schedule that looks for its last firing must not take it for missing."""
    partition = await open_transaction(broker)
    browse = partial(broker.fetch.browser.browse, CALLER, "t", 0, 0, 10)
    assert [message.offset for message in await browse()] == [0]
    with pytest.raises(RequestError) as error:
        await browse(is_whole=True)
    assert error.value.kind is ErrorKind.CONCURRENT_TRANSACTIONS
    end(partition, commits=True)
    await committed(broker, partition)
    assert [message.offset for message in await browse(is_whole=True)] == [0, 1]


async def test_offset_in_the_open_transaction_is_valid_and_empty(broker: BrokerNode) -> None:
    await open_transaction(broker)
    for offset in (1, 2):
        [fetched] = fetch_now(broker, at(0, offset), wait=AT_ONCE)
        assert (fetched.error, fetched.records) == (None, None)
    [beyond] = fetch_now(broker, at(0, 3), wait=AT_ONCE)
    assert beyond.error is not None
    assert beyond.error.kind is ErrorKind.OFFSET_OUT_OF_RANGE


async def test_marker_ends_the_wait(broker: BrokerNode) -> None:
    partition = await open_transaction(broker)
    done, _ = start_fetch(broker, at(0, 1), wait=PATIENT)
    end(partition, commits=False)
    [fetched] = await done
    assert fetched.records is not None
    assert fetched.last_stable_offset == 3
    assert [(aborted.producer_id, aborted.first_offset) for aborted in fetched.aborted] == [(7, 1)]


async def test_aborted_transactions_above_the_slice_are_not_listed(broker: BrokerNode) -> None:
    partition = await open_transaction(broker)
    end(partition, commits=False)
    await committed(broker, partition)
    [fetched] = fetch_now(broker, at(0, 0, max_bytes=1), wait=AT_ONCE)
    assert fetched.records is not None
    assert fetched.aborted == []


async def test_latest_offset_is_the_last_stable_one(broker: BrokerNode) -> None:
    partition = await open_transaction(broker)
    assert (await broker.fetch.offsets.find(CALLER, "t", 0, LATEST, -1))[0] == 2
    assert (await broker.fetch.offsets.find(CALLER, "t", 0, LATEST, -1, reads_committed=True))[0] == 1
    end(partition, commits=True)
    await committed(broker, partition)
    assert (await broker.fetch.offsets.find(CALLER, "t", 0, LATEST, -1, reads_committed=True))[0] == 3


async def test_times_find_no_unstable_record(broker: BrokerNode) -> None:
    await open_transaction(broker)
    assert (await broker.fetch.offsets.find(CALLER, "t", 0, NOW_MS + 1, -1))[0] == 1
    assert (await broker.fetch.offsets.find(CALLER, "t", 0, NOW_MS + 1, -1, reads_committed=True))[0] == -1
    assert (await broker.fetch.offsets.find(CALLER, "t", 0, NEWEST_TIMESTAMP, -1, reads_committed=True))[0] == 0


def test_session_reports_a_last_stable_offset_that_rose_alone() -> None:
    partition = SessionPartition("t", FetchPosition("t", 0, 1, 1 << 20))
    assert partition.record_sent(Fetched(None, 3, 0, last_stable_offset=1))
    assert not partition.record_sent(Fetched(None, 3, 0, last_stable_offset=1))
    assert partition.record_sent(Fetched(None, 3, 0, last_stable_offset=3))
