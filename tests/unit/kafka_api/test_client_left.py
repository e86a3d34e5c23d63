"""Requests to the coordinator of a group whose client leaves before they have begun."""

from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import request

OFFSET_COMMIT, OFFSET_FETCH = 8, 9


def commit(offset: int) -> bytes:
    """Encode a request that commits an offset of a group for `t`."""
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    topics = [{"name": "t", "partitions": [partition]}]
    return request(OFFSET_COMMIT, 2, group_id="g", generation_id=-1, member_id="", topics=topics)


async def committed(client: MemoryClient) -> int:
    """Return the committed offset, -1 if there is none."""
    answer = await client.ask(OFFSET_FETCH, 2, group_id="g", topics=[{"name": "t", "partition_indexes": (0,)}])
    return int(answer.topics[0].partitions[0].committed_offset)


async def test_a_commit_that_waits_for_its_coordinator_is_dropped(client: MemoryClient) -> None:
    """The client has given it up, and may have committed a newer offset over another connection since."""
    left = MemoryClient(client.broker)
    left.send(commit(1))
    left.connection.end()
    assert await committed(client) == -1
    client.send(commit(2))
    assert await client.next_id() == 7
    assert await committed(client) == 2
