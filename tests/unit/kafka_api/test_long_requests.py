"""Requests with many items have the effects and the answers of many short ones."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from conveyor.broker.slices import SLICE_ITEMS, Slices
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kafka_api.wire.connection import ITEM_BYTES
from conveyor.kafka_api.wire.long_request import LongRequest
from conveyor.log.log_start import TrimJob
from conveyor.records.record import encode_batch
from tests.callers import CALLER
from tests.unit.broker.parts import BATCH, NOW_MS, Storage, running_parts
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import (
    API_VERSIONS,
    DESCRIBE_GROUPS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    SOFTWARE,
    fetch,
    ids,
    produce,
    request,
)

pytestmark = pytest.mark.slow

PARTITIONS = SLICE_ITEMS + 50
COMMIT, FETCH_OFFSETS, LEAVE, CREATE_TOPICS, DELETE_RECORDS, ELECT = 8, 9, 13, 19, 21, 43
SETTINGS = {
    "broker.auto_create_topics": False, "groups.offsets_partitions": 1, "network.max_request_items": 5_000,
    "topics.flush_policy": "os",
}  # fmt: skip


@pytest.fixture
async def client(storage: Storage) -> AsyncIterator[MemoryClient]:
    """Yield a client of a broker with a topic of one partition."""
    async with running_parts(SETTINGS, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        yield MemoryClient(broker)


@pytest.fixture
async def wide(client: MemoryClient) -> MemoryClient:
    """Return a client of a broker whose topic has more partitions than a short request has items."""
    await client.broker.topics.add_partitions(CALLER, "t", PARTITIONS, None)
    return client


def produced(*batches: tuple[int, bytes], acks: int = -1) -> dict[str, Any]:
    partitions = [{"index": number, "records": batch} for number, batch in batches]
    return {"acks": acks, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": partitions}]}


def all_partitions(batch: bytes = BATCH, **more: Any) -> dict[str, Any]:
    return produced(*((number, batch) for number in range(PARTITIONS)), **more)


def fetched(*numbers: int, offset: int = 0, **more: Any) -> dict[str, Any]:
    limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 30, "forgotten_topics_data": []}
    partitions = [{"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20} for number in numbers]
    return limits | {"topics": [{"topic": "t", "partitions": partitions}]} | more


def codes(partitions: Any) -> set[ErrorCode]:
    return {partition.error_code for partition in partitions}


async def test_each_partition_gets_its_batch_and_its_answer(wide: MemoryClient) -> None:
    answer = await wide.ask(
        PRODUCE, 9, **produced((3, BATCH), (3, BATCH), *((n, BATCH) for n in range(PARTITIONS + 1)))
    )
    [topic] = answer.responses
    assert [partition.index for partition in topic.partition_responses] == [3, 3, *range(PARTITIONS + 1)]
    offsets = {partition.index: partition.base_offset for partition in topic.partition_responses}
    assert offsets == dict.fromkeys(range(PARTITIONS), 0) | {3: 2, PARTITIONS: -1}
    assert topic.partition_responses[-1].error_code is ErrorCode.unknown_topic_or_partition
    assert [partition.log.log_end_offset for partition in wide.broker.partitions.table] == [
        3 if partition.identity.partition == 3 else 1 for partition in wide.broker.partitions.table
    ]


async def test_zstd_in_a_long_request_of_an_old_version_is_refused(wide: MemoryClient) -> None:
    zstd = encode_batch([(NOW_MS, b"key", b"value", [])], codec=4)
    answer = await wide.ask(PRODUCE, 3, **produced(*((n, BATCH) for n in range(PARTITIONS - 1)), (5, zstd)))
    assert codes(answer.responses[0].partition_responses) == {ErrorCode.unsupported_compression_type}
    assert len(answer.responses[0].partition_responses) == PARTITIONS


async def test_refused_records_are_answered_within_what_the_request_weighs(client: MemoryClient) -> None:
    """A small batch can have thousands of records, each refused with a message."""
    await client.broker.topics.create(CALLER, TopicRequest(name="c", config={"cleanup.policy": "compact"}))
    keyless = encode_batch([(NOW_MS, None, b"v", [])] * 1_000, codec=4)
    values = produced(*[(0, keyless)] * 100)
    values["topic_data"][0]["name"] = "c"
    client.send(request(PRODUCE, 9, 1, **values))
    assert len(await client.answers.get()) < 100 * ITEM_BYTES


async def test_a_producers_batches_stay_in_order_around_a_long_request(wide: MemoryClient) -> None:
    """Otherwise the broker would refuse the later sequence numbers."""

    def idempotent(sequence: int) -> bytes:
        return encode_batch([(NOW_MS, b"k", b"v", [])], producer_id=7, producer_epoch=0, base_sequence=sequence)

    wide.send(
        request(PRODUCE, 9, 1, **produced((PARTITIONS - 1, idempotent(0)))),
        request(
            PRODUCE,
            9,
            2,
            **all_partitions(idempotent(0))
            | produced(*((n, idempotent(n == PARTITIONS - 1)) for n in range(PARTITIONS))),
        ),
        request(PRODUCE, 9, 3, **produced((PARTITIONS - 1, idempotent(2)), (0, idempotent(1)))),
    )
    assert [await wide.next_id() for _ in range(3)] == [1, 2, 3]
    ends = {partition.identity.partition: partition.log.log_end_offset for partition in wide.broker.partitions.table}
    assert (ends[0], ends[1], ends[PARTITIONS - 1]) == (2, 1, 3)


async def test_acks_none_has_no_answer(wide: MemoryClient) -> None:
    wide.send(
        request(PRODUCE, 9, 1, **all_partitions(acks=0)),
        request(API_VERSIONS, 3, 2, **SOFTWARE),
    )
    assert await wide.next_id() == 2
    assert all(partition.log.log_end_offset == 1 for partition in wide.broker.partitions.table)


async def test_long_produce_is_done_before_the_broker_seals_its_logs(wide: MemoryClient) -> None:
    batches = [(number, BATCH) for number in range(PARTITIONS)] * 16
    wide.send(request(PRODUCE, 9, 1, **produced(*batches, acks=0)))
    await asyncio.sleep(0)
    await wide.broker.finish_requests()
    assert {partition.log.log_end_offset for partition in wide.broker.partitions.table} == {16}
    wide.send(ids(1_000))
    await settled()
    assert wide.answers.empty()


async def test_fetch_of_many_partitions_reads_each_once(wide: MemoryClient) -> None:
    await wide.ask(PRODUCE, 9, **all_partitions())
    answer = await wide.ask(FETCH, 11, **fetched(*range(PARTITIONS), PARTITIONS), session_epoch=-1)
    [topic] = answer.responses
    assert [partition.partition_index for partition in topic.partitions] == [*range(PARTITIONS + 1)]
    assert all(partition.records[17:] == BATCH[17:] for partition in topic.partitions[:-1])
    assert topic.partitions[-1].error_code is ErrorCode.unknown_topic_or_partition


async def test_session_of_many_partitions_goes_on_with_changes(wide: MemoryClient) -> None:
    opened = await wide.ask(FETCH, 11, **fetched(*range(PARTITIONS), session_epoch=0))
    assert opened.session_id
    nothing = fetched(session_id=opened.session_id, session_epoch=1) | {"topics": []}
    assert not (await wide.ask(FETCH, 11, **nothing)).responses
    await wide.ask(PRODUCE, 9, **produced((PARTITIONS - 1, BATCH)))
    [topic] = (await wide.ask(FETCH, 11, **nothing | {"session_epoch": 2})).responses
    assert [partition.partition_index for partition in topic.partitions] == [PARTITIONS - 1]


async def test_fetch_of_a_session_is_weighed_by_the_partitions_that_the_session_remembers(wide: MemoryClient) -> None:
    """A frame of 50 bytes names a session."""
    opened = await wide.ask(FETCH, 11, **fetched(*range(PARTITIONS), session_epoch=0))
    nothing = fetched(session_id=opened.session_id, session_epoch=1, max_wait=3_600_000) | {"topics": []}
    wide.send(request(FETCH, 11, 1, **nothing))
    assert wide.connection.buffered_bytes > PARTITIONS * 512
    wide.broker.fetch.fetcher.finish_all()
    assert await wide.next_id() == 1
    assert wide.connection.buffered_bytes == 0


async def test_long_fetch_waits_for_records(wide: MemoryClient, storage: Storage) -> None:
    wide.send(request(FETCH, 11, 1, **fetched(*range(PARTITIONS), max_wait=3_600_000)))
    other = MemoryClient(wide.broker)
    await settled()
    assert not wide.connection.is_idle
    other.send(produce(2, BATCH))
    assert await wide.next_id() == 1
    wide.send(request(FETCH, 11, 3, **fetched(*range(1, PARTITIONS), max_wait=3_600_000)))
    await settled()
    assert not wide.connection.is_idle
    storage.clock.advance(ms=3_600_000)
    assert await wide.next_id() == 3


async def test_long_fetch_ends_with_its_connection_or_the_broker(wide: MemoryClient) -> None:
    other = MemoryClient(wide.broker)
    for client in (wide, other):
        client.send(request(FETCH, 11, 1, **fetched(*range(PARTITIONS), offset=0, max_wait=3_600_000)))
    await settled()
    wide.connection.end()
    wide.broker.fetch.fetcher.finish_all()
    assert await other.next_id() == 1
    assert wide.answers.empty()


async def settled() -> None:
    """Return when all slices have had their turns."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_offsets_of_many_partitions_are_committed_and_fetched(wide: MemoryClient) -> None:
    await wide.ask(10, 4, key_type=0, coordinator_keys=("g",))
    committed = [{"partition_index": n, "committed_offset": n, "committed_metadata": ""} for n in range(PARTITIONS + 1)]
    twice = [committed[7] | {"committed_offset": 1_000}]
    values = {
        "group_id": "g",
        "generation_id": -1,
        "member_id": "",
        "topics": [{"name": "t", "partitions": committed + twice}],
    }
    answer = await wide.ask(COMMIT, 8, **values)
    errors = [partition.error_code for partition in answer.topics[0].partitions]
    unknown = [index for index, error in enumerate(errors) if error is not ErrorCode.none]
    assert (len(errors), unknown) == (PARTITIONS + 2, [PARTITIONS])
    asked = {"topics": [{"name": "t", "partition_indexes": tuple(range(PARTITIONS + 1))}]}
    for version, more in ((7, asked), (8, {"groups": [{"group_id": "g"} | asked]})):
        found = await wide.ask(FETCH_OFFSETS, version, group_id="g", require_stable=True, **more)
        [topic] = (found.groups[0] if version == 8 else found).topics
        offsets = [partition.committed_offset for partition in topic.partitions]
        assert offsets == [1_000 if n == 7 else n for n in range(PARTITIONS)] + [-1]


async def test_all_offsets_of_several_groups_are_fetched_a_group_in_a_turn(
    wide: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is short, whatever its answer is."""
    names = [f"g{number}" for number in range(5)]
    slices: list[object] = []
    plain_later = Slices.later

    def later(each: Slices, work: Callable[[], None]) -> None:
        slices.append(work)
        plain_later(each, work)

    await wide.ask(10, 4, key_type=0, coordinator_keys=("g",))
    for name in names:
        committed = [{"partition_index": n, "committed_offset": n, "committed_metadata": ""} for n in range(3)]
        topics = [{"name": "t", "partitions": committed}]
        await wide.ask(COMMIT, 8, group_id=name, generation_id=-1, member_id="", topics=topics)
    monkeypatch.setattr(Slices, "later", later)
    groups = [{"group_id": name, "topics": None} for name in names]
    found = await wide.ask(FETCH_OFFSETS, 8, groups=groups, require_stable=False)
    assert [group.group_id for group in found.groups] == names
    assert {len(group.topics[0].partitions) for group in found.groups} == {3}
    assert len(slices) > len(names)


async def test_group_named_many_times_is_described_once(client: MemoryClient) -> None:
    await client.ask(10, 4, key_type=0, coordinator_keys=("g",))
    groups = tuple(f"g{number % 700}" for number in range(2_000))
    answer = await client.ask(DESCRIBE_GROUPS, 5, groups=groups, include_authorized_operations=False)
    assert [group.group_id for group in answer.groups] == [f"g{number}" for number in range(700)]
    assert {group.group_state for group in answer.groups} == {"Dead"}


class Visited(list[Any]):
    """A list that counts how often one of its items is looked at."""

    visits = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.visits += 1
            yield item

    def __contains__(self, item: object) -> bool:
        return item in iter(self)


async def test_pieces_are_looked_at_once(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each answer to look whether one is missing would take longer and longer."""
    pieces, start = Visited(), LongRequest.start

    def start_visited(long: LongRequest, call: KafkaCall) -> None:
        long._entities = pieces
        start(long, call)

    monkeypatch.setattr(LongRequest, "start", start_visited)
    client.send(ids(4_000))
    assert await client.next_id() == 1
    assert len(pieces) == pieces.visits == 4_000


async def test_many_members_leave_in_the_requests_order(client: MemoryClient) -> None:
    await client.ask(10, 4, key_type=0, coordinator_keys=("g",))
    members = [{"member_id": f"m{number}", "group_instance_id": None} for number in range(1_000)]
    answer = await client.ask(LEAVE, 4, group_id="g", members=members)
    assert [member.member_id for member in answer.members] == [member["member_id"] for member in members]
    assert codes(answer.members) == {ErrorCode.unknown_member_id}


async def test_topic_named_many_times_is_described_once(client: MemoryClient) -> None:
    topics = [{"name": name, "topic_id": None} for name in 1_000 * ["t", "nothing"]]
    answer = await client.ask(
        METADATA, 12, topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    assert [topic.name for topic in answer.topics] == ["t", "nothing"]


async def test_offsets_and_elections_of_many_partitions(wide: MemoryClient) -> None:
    listed = [{"partition_index": n, "timestamp": -2} for n in range(PARTITIONS)]
    answer = await wide.ask(
        LIST_OFFSETS, 6, replica_id=-1, isolation_level=0, topics=[{"name": "t", "partitions": listed}]
    )
    assert {(partition.error_code, partition.offset) for partition in answer.topics[0].partitions} == {
        (ErrorCode.none, 0)
    }
    wanted = {"topic": "t", "partitions": tuple(range(PARTITIONS))}
    elected = await wide.ask(ELECT, 2, election_type=0, topic_partitions=[wanted], timeout=1000)
    [topic] = elected.replica_election_results
    assert [partition.partition_id for partition in topic.partition_result] == [*range(PARTITIONS)]
    assert codes(topic.partition_result) == {ErrorCode.election_not_needed}


def deleted(*offsets: tuple[int, int]) -> dict[str, Any]:
    """Name each partition as a topic of its own."""
    topics = [{"name": "t", "partitions": [{"partition_index": n, "offset": offset}]} for n, offset in offsets]
    return {"topics": topics, "timeout": 1000}


async def test_records_of_many_partitions_are_deleted(wide: MemoryClient) -> None:
    await wide.ask(PRODUCE, 9, **all_partitions())
    [topic] = (await wide.ask(DELETE_RECORDS, 2, **deleted(*((n, 1) for n in range(PARTITIONS + 1))))).topics
    assert [partition.partition_index for partition in topic.partitions] == [*range(PARTITIONS + 1)]
    assert [partition.low_watermark for partition in topic.partitions] == PARTITIONS * [1] + [-1]


@pytest.mark.parametrize("times", [20, 1_000])
async def test_records_of_a_partition_that_is_named_many_times_are_deleted_once(
    client: MemoryClient, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last offset counts, as in Kafka."""
    jobs, run = list[TrimJob](), TrimJob.run

    def counted(job: TrimJob) -> None:
        jobs.append(job)
        run(job)

    monkeypatch.setattr(TrimJob, "run", counted)
    for _ in range(4):
        await client.ask(PRODUCE, 9, **produced((0, BATCH)))
    for earlier, last, trims in ((3, 2, 1), (1, 2, 1), (2, 4, 2), (4, 4, 2)):
        [topic] = (await client.ask(DELETE_RECORDS, 2, **deleted(*[(0, earlier)] * times, (0, last)))).topics
        assert [(entry.partition_index, entry.low_watermark) for entry in topic.partitions] == [(0, last)]
        assert len(jobs) == trims


async def test_long_request_is_weighed_by_its_items_until_its_answer(client: MemoryClient) -> None:
    client.send(ids(1_000))
    before = client.connection.buffered_bytes
    await asyncio.sleep(0)
    assert client.connection.buffered_bytes == before + 1_000 * ITEM_BYTES
    assert await client.next_id() == 1
    assert client.connection.buffered_bytes == 0


async def test_long_produce_is_weighed_to_its_end_after_its_client_has_disconnected(wide: MemoryClient) -> None:
    """Otherwise a client that connects again and again could have any number of them in memory."""
    wide.send(request(PRODUCE, 9, 1, **all_partitions()))
    while not wide.broker.partitions.table.find("t", 0).log.log_end_offset:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0)
    wide.connection.end()
    assert wide.connection.buffered_bytes > PARTITIONS * ITEM_BYTES
    async with asyncio.timeout(60):
        while wide.connection.buffered_bytes:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
    assert wide.broker.partitions.table.find("t", PARTITIONS - 1).term.high_watermark == 1
    assert wide.answers.empty()


async def test_deletions_of_records_end_with_their_connection(client: MemoryClient) -> None:
    client.send(request(DELETE_RECORDS, 2, 1, **deleted((0, 0))))
    client.connection.end()
    assert not client.connection.buffered_bytes


@pytest.mark.parametrize("count", [1_000, 5_000])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 8])
async def test_client_that_disconnects_ends_the_work(client: MemoryClient, turns: int, count: int) -> None:
    """The longer request is counted and decoded in a thread."""
    client.send(ids(count))
    for _ in range(turns):
        await asyncio.sleep(0)
    client.connection.end()
    other = MemoryClient(client.broker)
    other.send(ids(count))
    assert await other.next_id() == 1
    assert client.answers.empty()


async def test_users_of_a_long_request_are_described_once(client: MemoryClient) -> None:
    """A name that is repeated many slices later, too."""
    names = [f"u{number}" for number in range(1_000)]
    found = await client.ask(50, 0, users=tuple({"name": name} for name in [*names, "u0"]))
    assert [result.user for result in found.results] == names
    assert [result.error_code for result in found.results] == [
        ErrorCode.duplicate_resource, *[ErrorCode.resource_not_found] * 999
    ]  # fmt: skip


async def test_entity_of_a_quota_with_many_names_is_refused_and_named_whole(client: MemoryClient) -> None:
    entity = tuple({"entity_type": "user", "entity_name": f"u{number}"} for number in range(1_000))
    found = await client.ask(49, 1, entries=({"entity": entity, "ops": ()},), validate_only=False)
    [result] = found.entries
    assert result.error_code is ErrorCode.invalid_request
    assert [part.entity_name for part in result.entity] == [part["entity_name"] for part in entity]


async def test_request_behind_a_long_one_waits_for_its_answer(wide: MemoryClient) -> None:
    wide.send(request(PRODUCE, 9, 1, **all_partitions()), fetch(2, wait_ms=0))
    assert wide.connection.has_waiting
    assert [await wide.next_id() for _ in range(2)] == [1, 2]


async def test_more_items_than_permitted_close_the_connection_only(client: MemoryClient) -> None:
    other = MemoryClient(client.broker)
    client.send(ids(5_001))
    await until_failed(client)
    [reason] = client.failures
    assert "more than 5000 items or KiB of text (network.max_request_items)" in reason
    other.send(ids(5_000))
    assert await other.next_id() == 1
    malformed = ids(2_000)[:-20]
    other.send(malformed)
    await settled()
    [reason] = other.failures
    assert reason.startswith("DescribeGroupsRequest")


async def test_text_that_is_not_utf8_closes_the_connection(client: MemoryClient) -> None:
    client.send(ids(2_000).replace(b"1999", b"\xff999"))
    await settled()
    [reason] = client.failures
    assert "api key 15 version 5" in reason


async def test_many_ids_of_topics_are_described(client: MemoryClient) -> None:
    known = client.broker.metadata.image.topics["t"].topic_id
    topics = [{"name": None, "topic_id": identity} for identity in (known, *(UUID(int=n + 1) for n in range(1_000)))]
    answer = await client.ask(
        METADATA, 12, topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.none] + 1_000 * [ErrorCode.unknown_topic_id]


async def test_bug_in_the_answer_to_a_piece_closes_the_connection(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conveyor.kafka_api.wire.division._joined", lambda *_: 1 // 0)
    client.send(ids(1_000))
    await until_failed(client)
    assert client.failures == ["the request has failed: a bug, see the log"]


async def until_failed(client: MemoryClient) -> None:
    for _ in range(1_000_000):  # The request is worked on in slices of time: their number depends on the machine.
        if client.failures:
            return
        await asyncio.sleep(0)
