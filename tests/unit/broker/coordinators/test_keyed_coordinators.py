"""Coordinators of keys, of groups and of transactions alike."""

from collections.abc import Awaitable, Callable

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators.keyed_coordinators import as_coordinator
from conveyor.cluster.image import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from conveyor.groups.group_commands import FetchOffsets, ListGroups
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.transactions.transaction_commands import DescribeTransaction, ListTransactions
from tests.callers import CALLER
from tests.unit.broker.markers.producers import ID, initialized
from tests.unit.broker.markers.test_offsets import GROUP, add_group, commit
from tests.unit.broker.parts import Storage, running_parts

SETTINGS = {"groups.offsets_partitions": "1", "transactions.state_partitions": "1"}


async def ask_group(broker: BrokerNode) -> object:
    return await broker.coordinators.groups.ask(CALLER, FetchOffsets(group_id=GROUP, partitions=None))


async def ask_transaction(broker: BrokerNode) -> object:
    return await broker.coordinators.transactions.ask(CALLER, DescribeTransaction(transactional_id=ID))


EACH_KIND = pytest.mark.parametrize(
    ("topic", "ask"), [(OFFSETS_TOPIC, ask_group), (TRANSACTIONS_TOPIC, ask_transaction)]
)


@pytest.fixture
async def written(storage: Storage) -> Storage:
    """The storage of a broker with an offset that was committed in a transaction."""
    async with running_parts(SETTINGS, storage) as broker:
        client = await initialized(broker)
        await add_group(broker, client)
        await commit(broker, client, 5)
        await client.end(commit=True)
    return storage


@EACH_KIND
async def test_log_that_cannot_be_read_takes_its_partition_offline(
    written: Storage, topic: str, ask: Callable[[BrokerNode], Awaitable[object]]
) -> None:
    written.disk.open(f"logs/{topic}-0/00000000000000000000.log").written[70] ^= 1
    async with running_parts(SETTINGS, written) as broker:
        with pytest.raises(RequestError, match="damaged") as refused:
            await ask(broker)
        assert refused.value.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
        assert "damaged" in broker.partitions.table.offline()[f"{topic}-0"]


@EACH_KIND
async def test_log_is_read_again_once_files_can_be_opened(
    written: Storage, topic: str, ask: Callable[[BrokerNode], Awaitable[object]]
) -> None:
    async with running_parts(SETTINGS, written) as broker:
        partition = broker.partitions.table.find(topic, 0)
        broker.coordinators.transactions.lost(partition)
        written.disk.faults.out_of_files = True
        with pytest.raises(RequestError, match="Too many open files") as refused:
            await ask(broker)
        assert refused.value.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
        written.disk.faults.out_of_files = False
        written.clock.advance(seconds=1)
        await ask(broker)
        assert broker.partitions.table.offline() == {}


async def test_all_coordinators_of_this_broker_list_what_they_coordinate(written: Storage) -> None:
    async with running_parts(SETTINGS, written) as broker:
        assert [group.group_id for group in await broker.coordinators.groups.list_groups(CALLER, ListGroups())] == [
            GROUP
        ]
        listed = await broker.coordinators.transactions.list_transactions(CALLER, ListTransactions())
        assert [transaction.transactional_id for transaction in listed] == [ID]


def test_error_that_a_coordinator_does_not_change_is_not_its_own_cause() -> None:
    """A cycle would keep the frames that the error has passed, with all that they hold."""
    error = RequestError(ErrorKind.INVALID_GROUP_ID, "no")
    with pytest.raises(RequestError) as raised, as_coordinator():
        raise error
    assert raised.value is error
    assert error.__cause__ is None
