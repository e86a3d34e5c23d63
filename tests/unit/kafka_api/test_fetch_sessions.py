"""Fetch sessions on the wire: the responses to full, incremental and closing fetches."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from conveyor.cluster.topic_creation import TopicRequest
from tests.callers import CALLER
from tests.unit.broker.parts import BATCH, Storage, publish
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import FETCH, request, response

BY_NAME, BY_ID = 12, 17


@pytest.fixture
async def client(client: MemoryClient) -> MemoryClient:
    """Yield a client whose broker also has a topic `p` with three partitions."""
    await client.broker.topics.create(CALLER, TopicRequest(name="p", partitions=3))
    return client


def topic_id(client: MemoryClient, name: str = "p") -> UUID:
    return client.broker.metadata.image.topics[name].topic_id


def at(*offsets: int, topic: str | UUID = "p", first: int = 0, max_bytes: int = 1 << 20) -> dict[str, Any]:
    """Return a topic of a request, with the fetch offsets of its partitions, beginning with partition `first`."""
    partitions = [
        {"partition": number, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        for number, offset in enumerate(offsets, first)
    ]
    return {"topic": topic, "topic_id": topic, "partitions": partitions}


def forgotten(*numbers: int, topic: str | UUID = "p") -> list[dict[str, Any]]:
    return [{"topic": topic, "topic_id": topic, "partitions": numbers}]


def fetch(
    session: int, epoch: int, *topics: dict[str, Any], version: int = BY_NAME, wait_ms: int = 0,
    min_bytes: int = 1, max_bytes: int = 1 << 20, correlation_id: int = 7, forget: list[dict[str, Any]] | None = None,
) -> bytes:  # fmt: skip
    limits = {"max_wait": wait_ms, "min_bytes": min_bytes, "max_bytes": max_bytes}
    session_fields = {
        "session_id": session,
        "session_epoch": epoch,
        "topics": topics,
        "forgotten_topics_data": forget or [],
    }
    return request(FETCH, version, correlation_id, **limits, **session_fields)


async def ask(client: MemoryClient, frame: bytes, version: int = BY_NAME) -> Any:
    client.send(frame)
    return response(FETCH, version, await client.answers.get())


def record_bytes(answer: Any) -> dict[int, int]:
    """Return the size of the records of each partition in a response, by partition number."""
    return {
        partition.partition_index: len(partition.records)
        for topic in answer.responses
        for partition in topic.partitions
    }


def errors(answer: Any) -> list[int]:
    return [int(partition.error_code) for topic in answer.responses for partition in topic.partitions]


async def test_an_incremental_fetch_returns_only_changes(client: MemoryClient) -> None:
    full = await ask(client, fetch(0, 0, at(0, 0, 0)))
    assert full.session_id > 0
    assert record_bytes(full) == {0: 0, 1: 0, 2: 0}
    quiet = await ask(client, fetch(full.session_id, 1))
    assert (quiet.session_id, quiet.responses) == (full.session_id, ())
    await publish(client.broker, ("p", 1))
    assert record_bytes(await ask(client, fetch(full.session_id, 2))) == {1: len(BATCH)}
    assert record_bytes(await ask(client, fetch(full.session_id, 3, at(1, first=1)))) == {}


async def test_a_waiting_incremental_fetch_wakes_for_records(client: MemoryClient) -> None:
    session = (await ask(client, fetch(0, 0, at(0, 0, 0)))).session_id
    client.send(fetch(session, 1, wait_ms=500))
    assert await client.answered_ids() == []
    await publish(client.broker, ("p", 2))
    assert record_bytes(response(FETCH, BY_NAME, await client.answers.get())) == {2: len(BATCH)}


async def test_a_waiting_incremental_fetch_ends_without_changes(client: MemoryClient, storage: Storage) -> None:
    session = (await ask(client, fetch(0, 0, at(0, 0, 0)))).session_id
    client.send(fetch(session, 1, wait_ms=500))
    storage.clock.advance(ms=500)
    assert response(FETCH, BY_NAME, await client.answers.get()).responses == ()


async def test_a_waiting_incremental_fetch_ends_with_less_than_min_bytes(
    client: MemoryClient, storage: Storage
) -> None:
    session = (await ask(client, fetch(0, 0, at(0, 0, 0)))).session_id
    client.send(fetch(session, 1, wait_ms=500, min_bytes=1000))
    await publish(client.broker, ("p", 2))
    assert await client.answered_ids() == []
    storage.clock.advance(ms=500)
    assert record_bytes(response(FETCH, BY_NAME, await client.answers.get())) == {2: len(BATCH)}


async def test_a_rising_high_watermark_is_returned_without_records(client: MemoryClient) -> None:
    session = (await ask(client, fetch(0, 0, at(0)))).session_id
    await publish(client.broker, ("p", 0))
    answer = await ask(client, fetch(session, 1, at(1)))
    assert record_bytes(answer) == {0: 0}
    assert answer.responses[0].partitions[0].high_watermark == 1


async def test_partitions_are_added_and_forgotten(client: MemoryClient) -> None:
    session = (await ask(client, fetch(0, 0, at(0, 0)))).session_id
    assert record_bytes(await ask(client, fetch(session, 1, at(0, first=2)))) == {2: 0}
    await publish(client.broker, ("p", 0), ("p", 1), ("p", 2))
    assert set(record_bytes(await ask(client, fetch(session, 2, forget=forgotten(0, 2))))) == {1}


async def test_forgetting_every_partition_ends_the_session(client: MemoryClient) -> None:
    session = (await ask(client, fetch(0, 0, at(0)))).session_id
    ended = await ask(client, fetch(session, 1, forget=forgotten(0)))
    assert (int(ended.error_code), ended.session_id, ended.responses) == (0, 0, ())
    assert len(client.broker.fetch.sessions) == 0


@pytest.mark.parametrize("name", ["x" * 250, "ä" * 249])
async def test_no_session_keeps_a_name_that_no_topic_can_have(client: MemoryClient, name: str) -> None:
    """A thousand sessions could keep 64 GB of them. The client learns that the topic is unknown."""
    sessions = client.broker.fetch.sessions
    full = await ask(client, fetch(0, 0, at(0), at(0, topic=name)))
    assert (full.session_id, errors(full), len(sessions)) == (0, [0, 3], 0)
    session = (await ask(client, fetch(0, 0, at(0), at(0, topic="y" * 249)))).session_id
    assert session > 0
    continued = await ask(client, fetch(session, 1, at(0, topic=name)))
    assert (int(continued.error_code), continued.session_id) == (70, 0)
    assert (len(sessions), sessions.partition_count) == (0, 0)


@pytest.mark.parametrize("session", [0, 5, -1])
@pytest.mark.parametrize("epoch", [1, 5, -2])
async def test_an_unknown_session(client: MemoryClient, session: int, epoch: int) -> None:
    answer = await ask(client, fetch(session, epoch, at(0)))
    assert (int(answer.error_code), answer.session_id, answer.responses) == (70, 0, ())


async def test_an_epoch_that_is_not_the_next_one_changes_nothing(client: MemoryClient) -> None:
    session = (await ask(client, fetch(0, 0, at(0)))).session_id
    for epoch in (2, -2, 2**31 - 1):
        answer = await ask(client, fetch(session, epoch, at(0, first=1), forget=forgotten(0)))
        assert (int(answer.error_code), answer.session_id) == (71, 0)
    await publish(client.broker, ("p", 0), ("p", 1))
    assert set(record_bytes(await ask(client, fetch(session, 1)))) == {0}


async def test_a_full_fetch_replaces_the_session_it_names(client: MemoryClient) -> None:
    first = (await ask(client, fetch(0, 0, at(0)))).session_id
    second = (await ask(client, fetch(first, 0, at(0)))).session_id
    assert second not in (0, first)
    assert int((await ask(client, fetch(first, 1))).error_code) == 70
    assert len(client.broker.fetch.sessions) == 1


async def test_a_closing_fetch_reads_and_leaves_no_session(client: MemoryClient) -> None:
    session = (await ask(client, fetch(0, 0, at(0)))).session_id
    await publish(client.broker, ("p", 0))
    answer = await ask(client, fetch(session, -1, at(0)))
    assert (answer.session_id, record_bytes(answer)) == (0, {0: len(BATCH)})
    assert len(client.broker.fetch.sessions) == 0


async def test_a_request_overtaken_by_a_later_one_gets_an_error(client: MemoryClient, storage: Storage) -> None:
    session = (await ask(client, fetch(0, 0, at(0)))).session_id
    client.send(fetch(session, 1, wait_ms=500, correlation_id=1), fetch(session, 2, correlation_id=2))
    storage.clock.advance(ms=500)
    overtaken, last = [response(FETCH, BY_NAME, await client.answers.get()) for _ in range(2)]
    assert (int(overtaken.error_code), overtaken.session_id) == (71, session)
    assert int(last.error_code) == 0


async def test_a_client_that_disconnects_before_its_first_response_leaves_no_session(
    client: MemoryClient, storage: Storage
) -> None:
    client.send(fetch(0, 0, at(0), wait_ms=500))
    client.connection.end()
    storage.clock.advance(ms=500)
    await client.broker.partitions.tick.end()
    assert len(client.broker.fetch.sessions) == 0


async def test_a_session_outlives_its_connection(client: MemoryClient) -> None:
    session = (await ask(client, fetch(0, 0, at(0)))).session_id
    client.connection.end()
    other = MemoryClient(client.broker)
    assert int((await ask(other, fetch(session, 1))).error_code) == 0


@pytest.mark.parametrize("max_bytes", [0, 1, len(BATCH)])
async def test_responses_with_room_for_one_batch_serve_every_partition_in_turn(
    client: MemoryClient, max_bytes: int
) -> None:
    await publish(client.broker, *[("p", number) for number in (0, 1, 2)] * 2)
    answer = await ask(client, fetch(0, 0, at(0, 0, 0, max_bytes=1), max_bytes=max_bytes))
    offsets, served = [0, 0, 0], []
    for epoch in range(1, 7):
        [number] = [number for number, size in record_bytes(answer).items() if size]
        served.append(number)
        offsets[number] += 1
        moved = at(offsets[number], first=number, max_bytes=1)
        answer = await ask(client, fetch(answer.session_id, epoch, moved, max_bytes=max_bytes))
    assert sorted(served) == [0, 0, 1, 1, 2, 2]
    assert sorted(served[1:4]) == [0, 1, 2]
    assert not any(record_bytes(answer).values())


async def test_an_error_is_returned_until_it_is_gone(client: MemoryClient) -> None:
    session = (await ask(client, fetch(0, 0, at(0), at(0, topic="later")))).session_id
    assert errors(await ask(client, fetch(session, 1, wait_ms=500))) == [3]
    await client.broker.topics.create(CALLER, TopicRequest(name="later"))
    assert [errors(await ask(client, fetch(session, epoch))) for epoch in (2, 3)] == [[0], []]


async def test_topics_by_id(client: MemoryClient) -> None:
    by_id = at(0, 0, topic=topic_id(client))
    session = (await ask(client, fetch(0, 0, by_id, version=BY_ID), BY_ID)).session_id
    await publish(client.broker, ("p", 1))
    answer = await ask(client, fetch(session, 1, version=BY_ID), BY_ID)
    assert (answer.responses[0].topic_id, record_bytes(answer)) == (topic_id(client), {1: len(BATCH)})
    gone = fetch(session, 2, version=BY_ID, forget=forgotten(0, 1, topic=topic_id(client)))
    assert (await ask(client, gone, BY_ID)).session_id == 0


async def test_an_unknown_topic_id_is_an_error_of_its_partition(client: MemoryClient) -> None:
    existing, unknown = at(0, topic=topic_id(client)), at(0, topic=uuid4())
    full = await ask(client, fetch(0, 0, existing, unknown, version=BY_ID), BY_ID)
    assert errors(full) == [0, 100]
    again = await ask(client, fetch(full.session_id, 1, version=BY_ID), BY_ID)
    assert [int(again.error_code), *errors(again)] == [0, 100]


async def test_a_recreated_topic_is_not_read_by_its_old_id(client: MemoryClient) -> None:
    old = topic_id(client)
    session = (await ask(client, fetch(0, 0, at(0, topic=old), version=BY_ID), BY_ID)).session_id
    await client.broker.topics.delete(CALLER, "p")
    await client.broker.topics.create(CALLER, TopicRequest(name="p"))
    await publish(client.broker, ("p", 0))
    answer = await ask(client, fetch(session, 1, version=BY_ID), BY_ID)
    assert (errors(answer), record_bytes(answer)) == ([100], {0: 0})


@pytest.mark.parametrize(("opened", "used"), [(BY_NAME, BY_ID), (BY_ID, BY_NAME)])
async def test_a_session_keeps_to_names_or_to_ids(client: MemoryClient, opened: int, used: int) -> None:
    topic = topic_id(client) if opened == BY_ID else "p"
    session = (await ask(client, fetch(0, 0, at(0, topic=topic), version=opened), opened)).session_id
    answer = await ask(client, fetch(session, 1, version=used), used)
    assert (int(answer.error_code), answer.session_id) == (106, 0)


async def test_a_topic_is_named_once_in_a_response(client: MemoryClient) -> None:
    """Some clients keep one entry for each topic, so the order of partitions in the session must not matter."""
    await publish(client.broker, ("p", 0), ("t", 0), ("p", 1))
    session = (await ask(client, fetch(0, 0, at(0), at(0, topic="t"), at(0, first=1)))).session_id
    answer = await ask(client, fetch(session, 1))
    assert [(topic.topic, len(topic.partitions)) for topic in answer.responses] == [("p", 2), ("t", 1)]
