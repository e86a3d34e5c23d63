"""Topic ids that a client chooses so that all have the same hash: no set or mapping compares each with all others."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import DELETE_TOPICS, FETCH, METADATA

_HASH_MODULUS = (1 << 61) - 1
IDS = [UUID(int=1 + number * _HASH_MODULUS) for number in range(2_000)]
OFFSET_FETCH, HEARTBEAT = 9, 68


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of comparisons of ids."""
    counts = [0]
    equal = UUID.__eq__

    def counted(self: UUID, other: object) -> bool:
        counts[0] += 1
        return equal(self, other)

    assert len(set(map(hash, IDS))) == 1
    monkeypatch.setattr(UUID, "__eq__", counted)
    yield counts
    assert counts[0] < 10 * len(IDS)


def fetched(**session: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    topics = [{"topic_id": topic_id, "partitions": [partition]} for topic_id in IDS]
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1}
    return {"topics": topics, "forgotten_topics_data": [], **limits, **session}


@pytest.mark.usefixtures("compared")
async def test_metadata_names_each_once(client: MemoryClient) -> None:
    topics = [{"topic_id": topic_id, "name": None} for topic_id in [*IDS, *IDS]]
    asked = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    assert len((await client.ask(METADATA, 12, topics=topics, **asked)).topics) == len(IDS)


@pytest.mark.usefixtures("compared")
async def test_fetch_sessions_take_and_forget_them(client: MemoryClient) -> None:
    opened = await client.ask(FETCH, 13, **fetched(session_id=0, session_epoch=0))
    assert opened.session_id
    continued = await client.ask(FETCH, 13, **fetched(session_id=opened.session_id, session_epoch=1))
    assert int(continued.error_code) == 0
    forgotten = [{"topic_id": topic_id, "partitions": [0]} for topic_id in IDS[1:]]
    values = fetched(session_id=opened.session_id, session_epoch=2) | {"forgotten_topics_data": forgotten, "topics": []}
    await client.ask(FETCH, 13, **values)
    assert client.broker.fetch.sessions.partition_count == 1


@pytest.mark.usefixtures("compared")
async def test_topics_to_delete_are_counted(client: MemoryClient) -> None:
    topics = [{"name": None, "topic_id": topic_id} for topic_id in IDS]
    answer = await client.ask(DELETE_TOPICS, 6, topics=topics, timeout=1_000)
    assert {int(result.error_code) for result in answer.responses} == {100}


@pytest.mark.usefixtures("compared")
async def test_offsets_are_fetched(client: MemoryClient) -> None:
    topics = [{"topic_id": topic_id, "partition_indexes": [0]} for topic_id in IDS]
    group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": topics}
    answer = await client.ask(OFFSET_FETCH, 10, groups=[group], require_stable=False)
    assert len(answer.groups[0].topics) == len(IDS)


@pytest.mark.usefixtures("compared")
async def test_member_owns_their_partitions(client: MemoryClient) -> None:
    fields = {"group_id": "g", "instance_id": None, "rack_id": None, "server_assignor": None}
    joining = {"rebalance_timeout": 300_000, "subscribed_topic_names": ("t",), "topic_partitions": ()}
    joined = await client.ask(HEARTBEAT, 0, **fields, **joining, member_id="", member_epoch=0)
    owned = [{"topic_id": topic_id, "partitions": [0]} for topic_id in IDS]
    answer = await client.ask(
        HEARTBEAT, 0, **fields, member_id=joined.member_id, member_epoch=joined.member_epoch, rebalance_timeout=-1,
        subscribed_topic_names=(), topic_partitions=owned,
    )  # fmt: skip
    assert (answer.error_code, answer.member_epoch) == (ErrorCode.none, joined.member_epoch + 1)
