"""Quotas at the Kafka door: responses are sent at once with a throttle time, during which the client is muted."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from conveyor.cluster.quotas import CLIENT_ID, USER, QuotaChange, QuotaEntity
from conveyor.kernel.access.caller import Principal, PrincipalType
from conveyor.kernel.errors import ProtocolViolation
from tests.callers import CALLER
from tests.unit.broker.parts import BATCH, Storage
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import (
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    FETCH,
    METADATA,
    PRODUCE,
    SOFTWARE,
    fetch,
    framed,
    produce,
    request,
    response,
)

CREATE_PARTITIONS, DESCRIBE, ALTER = 37, 48, 49
UNIT: QuotaEntity = ((CLIENT_ID, "unit"),)
MILLISECOND = timedelta(milliseconds=1)


def ping(correlation_id: int) -> bytes:
    return request(API_VERSIONS, 3, correlation_id, **SOFTWARE)


async def limit(client: MemoryClient, **values: float) -> None:
    """Set quotas for the client id of all these requests."""
    await client.broker.clients.quotas.alter(
        CALLER, UNIT, [QuotaChange(key=key, value=value) for key, value in values.items()]
    )


async def throttled_ms(client: MemoryClient, api_key: int, version: int) -> int:
    """Return the throttle time of the next response."""
    body = response(api_key, version, await client.answers.get())
    return int(body.throttle_time / MILLISECOND)


@pytest.mark.parametrize("clock_set_by_s", [0, 3600, -3600])
async def test_a_producer_is_muted_for_its_throttle_time(
    client: MemoryClient, storage: Storage, clock_set_by_s: int
) -> None:
    await limit(client, producer_byte_rate=1)
    client.send(produce(1, BATCH), ping(2))
    assert client.connection.is_muted
    told_ms = await throttled_ms(client, PRODUCE, 9)
    assert told_ms > 10_000
    storage.clock.set_wall_clock(by_seconds=clock_set_by_s)
    storage.clock.advance(ms=told_ms - 1)
    assert await client.answered_ids() == []
    storage.clock.advance(ms=1)
    assert await client.answered_ids() == [2]
    assert not client.connection.is_muted


async def test_a_producer_within_its_quota_is_not_muted(client: MemoryClient) -> None:
    await limit(client, producer_byte_rate=1_000_000)
    client.send(produce(1, BATCH))
    assert await throttled_ms(client, PRODUCE, 9) == 0
    assert not client.connection.is_muted


async def test_largest_number_is_no_limit(client: MemoryClient) -> None:
    """Java's Double.MAX_VALUE, of which no multiple is a number."""
    await filled(client, consumer_byte_rate=1e308 * 1.79, producer_byte_rate=1e308, controller_mutation_rate=1e308)
    got = await client.ask(FETCH, 4, **fetch_values())
    assert got.responses[0].partitions[0].records.count(BATCH[-8:]) == 3
    topic = {"name": "more", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    created = await client.ask(CREATE_TOPICS, 6, topics=[topic], timeout=1000, validate_only=False)
    assert (int(created.topics[0].error_code), created.throttle_time) == (0, timedelta(0))


async def test_another_client_id_is_not_limited(client: MemoryClient) -> None:
    await client.broker.clients.quotas.alter(
        CALLER, ((CLIENT_ID, "other"),), [QuotaChange(key="producer_byte_rate", value=1)]
    )
    client.send(produce(1, BATCH))
    assert await throttled_ms(client, PRODUCE, 9) == 0


async def test_all_connections_of_a_user_share_the_quota_of_the_user(client: MemoryClient) -> None:
    quota = QuotaChange(key="producer_byte_rate", value=1)
    await client.broker.clients.quotas.alter(CALLER, ((USER, "alice"),), [quota])
    throttled = []
    for user in ("alice", "bob", "alice"):
        logged_in = MemoryClient(client.broker)
        logged_in.connection.authenticated(Principal(PrincipalType.USER, user))
        logged_in.send(produce(1, BATCH))
        throttled.append(await throttled_ms(logged_in, PRODUCE, 9))
    assert throttled[2] > throttled[0] > throttled[1] == 0


async def test_a_producer_with_acks_0_is_muted_too(client: MemoryClient, storage: Storage) -> None:
    await limit(client, producer_byte_rate=1)
    client.send(produce(1, BATCH, acks=0), ping(2))
    assert await client.answered_ids() == []
    assert client.connection.is_idle
    storage.clock.advance(seconds=3600)
    assert await client.answered_ids() == [2]


async def test_other_connections_are_served_until_they_exceed_the_quota(client: MemoryClient) -> None:
    await limit(client, producer_byte_rate=1)
    client.send(produce(1, BATCH))
    other = MemoryClient(client.broker)
    other.send(ping(1), produce(2, BATCH), ping(3))
    assert await other.next_id() == 1
    assert await throttled_ms(other, PRODUCE, 9) > await throttled_ms(client, PRODUCE, 9)
    assert await other.answered_ids() == []


async def test_pending_requests_are_answered_in_order_while_muted(client: MemoryClient, storage: Storage) -> None:
    """The fetch waits for the records of the produce request, which exceeds the quota."""
    await limit(client, producer_byte_rate=1)
    client.send(fetch(1, wait_ms=60_000), produce(2, BATCH), ping(3))
    assert [await client.next_id(), await client.next_id()] == [1, 2]
    assert client.connection.is_muted
    storage.clock.advance(seconds=3600)
    assert await client.answered_ids() == [3]


async def test_a_closed_connection_is_not_unmuted(client: MemoryClient, storage: Storage) -> None:
    await limit(client, producer_byte_rate=1)
    client.send(produce(1, BATCH), ping(2))
    client.connection.end()
    storage.clock.advance(seconds=3600)
    await client.broker.partitions.flusher.drain()
    assert await client.answered_ids() == []
    assert client.connection.finished_requests <= 1


async def test_a_violation_while_muted_is_found_afterwards(client: MemoryClient, storage: Storage) -> None:
    await limit(client, producer_byte_rate=1)
    client.send(produce(1, BATCH))
    assert await client.next_id() == 1
    client.connection.receive(framed(b"\x03\xe7\x00\x00\x00\x00\x00\x01"))
    with pytest.raises(ProtocolViolation):
        storage.clock.advance(seconds=3600)


async def filled(client: MemoryClient, **values: float) -> None:
    """Produce ten batches to fetch, and set quotas."""
    client.send(*(produce(number, BATCH) for number in range(3)))
    for _ in range(3):
        await client.answers.get()
    await limit(client, **values)


async def test_a_consumer_gets_no_records_until_its_quota_allows(client: MemoryClient, storage: Storage) -> None:
    await filled(client, consumer_byte_rate=len(BATCH) // 10 + 1)
    first = await client.ask(FETCH, 4, **fetch_values())
    assert len(first.responses[0].partitions[0].records) == len(BATCH), "as much as its windows allow"
    client.send(fetch(2, offset=1), ping(3))
    second = response(FETCH, 4, await client.answers.get())
    assert (second.responses, second.throttle_time > timedelta(0)) == ((), True)
    assert await client.answered_ids() == []
    storage.clock.advance(seconds=11)
    assert await client.answered_ids() == [3]
    third = await client.ask(FETCH, 4, **fetch_values(offset=1))
    assert len(third.responses[0].partitions[0].records) == len(BATCH)


def fetch_values(offset: int = 0) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    topics = [{"topic": "t", "partitions": [partition]}]
    return {"topics": topics, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20}


async def test_a_fetch_session_survives_an_empty_response(client: MemoryClient, storage: Storage) -> None:
    await filled(client, consumer_byte_rate=len(BATCH) // 10 + 1)
    whole = fetch_values() | {"session_id": 0, "session_epoch": 0, "forgotten_topics_data": []}
    session = (await client.ask(FETCH, 7, **whole)).session_id
    assert session
    going_on = whole | {"session_id": session, "topics": fetch_values(offset=1)["topics"]}
    client.send(request(FETCH, 7, 2, **going_on | {"session_epoch": 1}))
    empty = response(FETCH, 7, await client.answers.get())
    assert (empty.session_id, empty.responses, int(empty.error_code)) == (session, (), 0)
    assert empty.throttle_time > timedelta(0)
    storage.clock.advance(seconds=11)
    news = await client.ask(FETCH, 7, **going_on | {"session_epoch": 2, "topics": []})
    assert len(news.responses[0].partitions[0].records) == len(BATCH)


async def test_an_empty_response_opens_no_fetch_session(client: MemoryClient) -> None:
    await filled(client, consumer_byte_rate=1)
    whole = fetch_values() | {"session_id": 0, "session_epoch": 0, "forgotten_topics_data": []}
    await client.ask(FETCH, 7, **whole)
    other = MemoryClient(client.broker)
    empty = await other.ask(FETCH, 7, **whole)
    assert (empty.session_id, empty.responses) == (0, ())
    assert empty.throttle_time > timedelta(0)


async def test_request_time_throttles_the_next_request(client: MemoryClient, storage: Storage) -> None:
    await limit(client, request_percentage=1e-9)
    client.send(ping(1), request(METADATA, 4, 2, topics=(), allow_auto_topic_creation=False), ping(3))
    assert await throttled_ms(client, API_VERSIONS, 3) == 0
    assert await throttled_ms(client, METADATA, 4) == 1000
    assert await client.answered_ids() == []
    storage.clock.advance(seconds=1)
    assert await throttled_ms(client, API_VERSIONS, 3) == 1000


async def test_a_produce_response_includes_the_throttling_for_its_time(client: MemoryClient) -> None:
    await limit(client, request_percentage=1e-9)
    client.send(ping(1), produce(2, BATCH, acks=0), produce(3, BATCH))
    assert await throttled_ms(client, API_VERSIONS, 3) == 0
    assert await throttled_ms(client, PRODUCE, 9) == 1000, "acks=0 has no response and is not throttled by request time"


async def test_pending_requests_are_answered_at_the_stop_though_muted(client: MemoryClient) -> None:
    await limit(client, producer_byte_rate=1, request_percentage=1e-9)
    client.send(ping(1), fetch(2, offset=0, wait_ms=60_000))
    assert await client.next_id() == 1
    client.broker.fetch.fetcher.finish_all()
    assert await client.next_id() == 2


def quota_entry(value: float, name: str | None = "unit", key: str = "producer_byte_rate") -> dict[str, Any]:
    ops = [{"key": key, "value": value, "remove": False}]
    return {"entity": [{"entity_type": CLIENT_ID, "entity_name": name}], "ops": ops}


async def test_altered_quotas_are_described_and_enforced(client: MemoryClient) -> None:
    altered = await client.ask(ALTER, 1, entries=[quota_entry(1), quota_entry(2, None)], validate_only=False)
    assert [int(entry.error_code) for entry in altered.entries] == [0, 0]
    any_id = [{"entity_type": CLIENT_ID, "match_type": 2, "match": None}]
    described = await client.ask(DESCRIBE, 1, components=any_id, strict=True)
    names = [entry.entity[0].entity_name for entry in described.entries]
    values = [(entry.values[0].key, entry.values[0].value) for entry in described.entries]
    assert names == [None, "unit"]
    assert values == [("producer_byte_rate", 2.0), ("producer_byte_rate", 1.0)]
    client.send(produce(1, BATCH))
    assert await throttled_ms(client, PRODUCE, 9) > 0


async def test_each_entry_is_altered_or_refused_on_its_own(client: MemoryClient) -> None:
    entries = [quota_entry(1, "a"), quota_entry(1, "b", "connection_creation_rate"), quota_entry(1, "c")]
    altered = await client.ask(ALTER, 1, entries=[*entries, quota_entry(2, "c")], validate_only=False)
    assert [int(entry.error_code) for entry in altered.entries] == [0, 42, 42, 42]
    assert "quota 'connection_creation_rate' is not supported" in altered.entries[1].error_message
    assert [entry.entity[0].entity_name for entry in altered.entries] == ["a", "b", "c", "c"]
    assert list(client.broker.clients.quotas.quotas.entities) == [((CLIENT_ID, "a"),)]


async def changed_topics(client: MemoryClient, api_key: int, version: int, **values: Any) -> tuple[list[int], int]:
    """Return the error codes of a response and its throttle time in ms."""
    answer = await client.ask(api_key, version, timeout=1000, **values)
    results = getattr(answer, "topics", None) or getattr(answer, "responses", None) or answer.results
    return [int(result.error_code) for result in results], int(answer.throttle_time / MILLISECOND)


def creatable(*names: str, partitions: int = 1) -> dict[str, Any]:
    wanted = {"num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    return {"topics": [{"name": name} | wanted for name in names], "validate_only": False}


async def test_creating_partitions_beyond_the_quota_is_refused(client: MemoryClient, storage: Storage) -> None:
    """The bucket has 11 tokens. A request may exceed it; later requests are refused until the debt is paid."""
    await limit(client, controller_mutation_rate=1)
    made = await changed_topics(client, CREATE_TOPICS, 6, **creatable("a", "b", "c", partitions=7))
    assert made == ([0, 0, 89], 3000)
    assert "c" not in client.broker.metadata.image.topics
    storage.clock.advance(seconds=3)
    assert await changed_topics(client, CREATE_TOPICS, 6, **creatable("c")) == ([0], 1000)


async def test_deleting_and_adding_partitions_counts_too(client: MemoryClient, storage: Storage) -> None:
    await limit(client, controller_mutation_rate=1)
    more = {"topics": [{"name": "t", "count": 15, "assignments": None}]}
    assert await changed_topics(client, CREATE_PARTITIONS, 3, **more, validate_only=True) == ([0], 0)
    assert await changed_topics(client, CREATE_PARTITIONS, 3, **more, validate_only=False) == ([0], 3000)
    other = MemoryClient(client.broker)
    by_name = {"topics": [{"name": "t", "topic_id": None}]}
    assert await changed_topics(other, DELETE_TOPICS, 6, **by_name) == ([89], 3000)
    storage.clock.advance(seconds=3)
    assert await changed_topics(other, DELETE_TOPICS, 6, **by_name) == ([0], 15_000)


async def test_a_version_without_the_error_is_only_throttled(client: MemoryClient) -> None:
    await limit(client, controller_mutation_rate=1)
    made = await changed_topics(client, CREATE_TOPICS, 5, **creatable("a", "b", "c", partitions=7))
    assert made == ([0, 0, 0], 10_000)
    assert client.connection.is_muted


async def test_alterations_with_validate_only_change_nothing(client: MemoryClient) -> None:
    altered = await client.ask(ALTER, 0, entries=[quota_entry(1), quota_entry(-1, "b")], validate_only=True)
    assert [int(entry.error_code) for entry in altered.entries] == [0, 42]
    assert not client.broker.clients.quotas.in_force


@pytest.mark.parametrize(("entity_type", "match_type", "code"), [("group", 2, 35), (USER, 3, 42), (USER, 0, 42)])
async def test_a_wrong_filter_is_refused(client: MemoryClient, entity_type: str, match_type: int, code: int) -> None:
    component = {"entity_type": entity_type, "match_type": match_type, "match": None}
    described = await client.ask(DESCRIBE, 0, components=[component], strict=False)
    assert (int(described.error_code), described.entries) == (code, None)
    assert described.error_message


async def test_a_response_from_a_task_has_the_throttle_time(client: MemoryClient) -> None:
    await limit(client, request_percentage=1e-9)
    client.send(ping(1), request(ALTER, 1, 2, entries=[], validate_only=True))
    assert await throttled_ms(client, API_VERSIONS, 3) == 0
    assert await asyncio.wait_for(throttled_ms(client, ALTER, 1), 20) == 1000
