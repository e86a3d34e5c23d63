"""Metadata of topics that are asked for by id: answered in every version, also where a name must not be null."""

from uuid import UUID

import pytest

from tests.unit.kafka_api.client import MemoryClient


@pytest.mark.parametrize("version", [10, 11, 12, 13])
async def test_unknown_topic_id_is_answered(client: MemoryClient, version: int) -> None:
    asked = {"topic_id": UUID(int=1), "name": None}
    flags = ("include_cluster_authorized_operations", "include_topic_authorized_operations")
    values = dict.fromkeys(flags, False) | {"topics": [asked], "allow_auto_topic_creation": False}
    answer = await client.ask(3, version, **values)
    assert [int(each.error_code) for each in answer.topics] == [100]
    assert not answer.topics[0].name
