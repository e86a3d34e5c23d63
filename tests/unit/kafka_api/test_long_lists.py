"""Lists of all that a broker has: a short request, whose answer may be long."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest

from conveyor.broker.slices import SLICE_ITEMS
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.groups import administration
from conveyor.groups.records.group_records import OffsetKey, OffsetValue, offset_record
from conveyor.kafka_api.wire.codec import build_response
from conveyor.kernel.ids import ProducerEpoch, ProducerId
from conveyor.transactions import transaction_machine
from conveyor.transactions.transaction_log import transaction_record
from conveyor.transactions.transaction_value import TransactionState, TransactionValue
from tests.callers import CALLER
from tests.unit.broker.parts import running_parts
from tests.unit.broker.queues.dead_letters.test_dead_letter_turns import most_in_a_turn
from tests.unit.kafka_api.client import MemoryClient

DESCRIBE_LOG_DIRS, LIST_GROUPS, LIST_TRANSACTIONS = 35, 16, 66
COUNT = 2 * SLICE_ITEMS + 1
NAMES = [f"name-{number:03}" for number in range(COUNT)]
SETTINGS = {"groups.offsets_partitions": 2, "transactions.state_partitions": 2}
NO_FILTERS: dict[int, dict[str, Any]] = {
    LIST_GROUPS: {"states_filter": (), "types_filter": ()},
    LIST_TRANSACTIONS: {"state_filters": (), "producer_id_filters": (), "duration_filter": -1},
}


@pytest.fixture
def encoding_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that build the responses, one after the other."""
    threads: list[int] = []

    def build(*arguments: Any) -> Any:
        threads.append(get_ident())
        return build_response(*arguments)

    monkeypatch.setattr("conveyor.kafka_api.wire.call.build_response", build)
    return threads


def counted(monkeypatch: pytest.MonkeyPatch, module: object) -> list[object]:
    """Return what a machine looks at from now on."""
    seen: list[object] = []
    is_wanted: Callable[..., bool] = getattr(module, "_is_wanted")  # noqa: B009 - mypy

    def look(item: object, *arguments: Any) -> bool:
        seen.append(item)
        return is_wanted(item, *arguments)

    monkeypatch.setattr(module, "_is_wanted", look)
    return seen


async def with_transactions(client: MemoryClient) -> None:
    """Give the coordinator of each of two partitions transactional ids; one of them has many."""
    coordinators = client.broker.coordinators.transactions
    await coordinators.ensured()
    value = TransactionValue(
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(0),
        timeout_ms=1,
        state=TransactionState.EMPTY,
        last_update_ms=1,
    )
    for number, names in enumerate((NAMES[1:], NAMES[:1])):
        machine = (await coordinators.coordinator(number)).machine
        for name in names:
            machine.apply(transaction_record(name, value))


async def with_groups(client: MemoryClient) -> None:
    """As `with_transactions`, for groups."""
    coordinators = client.broker.coordinators.groups
    await coordinators.ensured()
    value = OffsetValue(offset=1, leader_epoch=0, metadata="", commit_timestamp_ms=1, topic_id=None)
    for number, names in enumerate((NAMES[1:], NAMES[:1])):
        machine = (await coordinators.coordinator(number)).machine
        for name in names:
            machine.apply(offset_record(OffsetKey(group_id=name, topic="t", partition=0), value))


@pytest.mark.parametrize("api_key", [LIST_GROUPS, LIST_TRANSACTIONS])
async def test_coordinator_lists_a_page_in_each_turn_and_a_thread_encodes_all(
    monkeypatch: pytest.MonkeyPatch, encoding_threads: list[int], api_key: int
) -> None:
    is_of_groups = api_key == LIST_GROUPS
    async with running_parts(SETTINGS) as broker:
        client = MemoryClient(broker)
        await (with_groups if is_of_groups else with_transactions)(client)
        seen = counted(monkeypatch, administration if is_of_groups else transaction_machine)
        request = client.ask(api_key, 4 if is_of_groups else 1, **NO_FILTERS[api_key])
        found, most = await most_in_a_turn(request, seen)
    if is_of_groups:
        assert sorted(group.group_id for group in found.groups) == NAMES
    else:
        assert sorted(transaction.transactional_id for transaction in found.transaction_states) == NAMES
    assert (len(seen), most) == (COUNT, SLICE_ITEMS)
    assert len(encoding_threads) == 1
    assert get_ident() not in encoding_threads


@pytest.mark.parametrize("partitions", [2, 3])
async def test_sizes_of_many_partitions_are_encoded_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, encoding_threads: list[int], partitions: int
) -> None:
    monkeypatch.setattr("conveyor.kafka_api.wire.call.SLICE_ITEMS", 2)
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=partitions))
        found = await MemoryClient(broker).ask(DESCRIBE_LOG_DIRS, 4, topics=None)
    [directory] = found.results
    assert [len(topic.partitions) for topic in directory.topics] == [partitions]
    assert (encoding_threads == [get_ident()]) == (partitions == 2)
