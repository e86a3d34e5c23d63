"""Versions that the handlers implement and kio 0.6.5 does not have: ApiVersions 5 and TxnOffsetCommit 6.

Their schemas are made here from kio's newest ones, and removed from this file once kio has them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import Any, ClassVar, get_args
from uuid import UUID, uuid4

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i32

from conveyor.kafka_api.wire import codec
from conveyor.kafka_api.wire.versions import _DECLARED, SERVED_APIS
from tests.callers import CALLER
from tests.unit.kafka_api import requests
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import SOFTWARE

API_VERSIONS, API_VERSIONS_5 = 18, 5
TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_6 = 28, 6
GROUP, TRANSACTIONAL_ID = "g", "x"


def changed(schema: Any, version: int, **replaced: tuple[str, Any, Any]) -> Any:
    """Return a copy of a kio class for another version. replaced: the name, type and field instead of one with a
    name.
    """
    members = [(old.name, old.type, field(metadata=old.metadata, default=old.default)) for old in fields(schema)]
    constants = {
        name: getattr(schema, name) for name in ("__type__", "__flexible__", "__api_key__", "__header_schema__")
    }
    return make_dataclass(
        schema.__name__,
        [replaced.get(name, (name, kind, value)) for name, kind, value in members],
        namespace=constants | {"__version__": i16(version)},
        frozen=True,
        slots=True,
        kw_only=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """v5 (KIP-1242)."""

    __type__: ClassVar = load_request_schema(API_VERSIONS, 4).__type__
    __version__: ClassVar[i16] = i16(API_VERSIONS_5)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(API_VERSIONS)
    __header_schema__: ClassVar = load_request_schema(API_VERSIONS, 4).__header_schema__
    client_software_name: str = field(metadata={"kafka_type": "string"})
    client_software_version: str = field(metadata={"kafka_type": "string"})
    cluster_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    node_id: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))


def txn_offset_commit(schema: Any) -> Any:
    """Return v6 of the request or the response (KIP-1319)."""
    [topics] = [member for member in fields(schema) if member.name == "topics"]
    topic_id = ("topic_id", UUID | None, field(metadata={"kafka_type": "uuid"}))
    topic = changed(get_args(topics.type)[0], TXN_OFFSET_COMMIT_6, name=topic_id)
    epoch = ("generation_id_or_member_epoch", i32, field(metadata={"kafka_type": "int32"}, default=i32(-1)))
    by_id = ("topics", tuple[topic, ...], field())  # type: ignore[valid-type]
    return changed(schema, TXN_OFFSET_COMMIT_6, topics=by_id, generation_id=epoch)


REQUESTS = {
    (API_VERSIONS, API_VERSIONS_5): ApiVersionsRequest,
    (TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_6): txn_offset_commit(load_request_schema(TXN_OFFSET_COMMIT, 5)),
}
RESPONSES = {
    (API_VERSIONS, API_VERSIONS_5): load_response_schema(API_VERSIONS, 4),
    (TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_6): txn_offset_commit(load_response_schema(TXN_OFFSET_COMMIT, 5)),
}


def with_more(load: Callable[[int, int], Any], more: dict[tuple[int, int], Any]) -> Callable[[int, int], Any]:
    return lambda key, version: more.get((key, version)) or load(key, version)


@pytest.fixture
def client(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> MemoryClient:
    """Return a client of a broker whose kio has the schemas of this file."""
    for module in (codec, requests):
        monkeypatch.setattr(module, "load_request_schema", with_more(load_request_schema, REQUESTS))
        monkeypatch.setattr(module, "load_response_schema", with_more(load_response_schema, RESPONSES))
    for key, version in REQUESTS:
        assert _DECLARED[key][0] == version
        monkeypatch.setitem(SERVED_APIS, key, replace(SERVED_APIS[key], versions=range(version + 1)))
    return client


@pytest.mark.parametrize(
    ("is_named", "node_id", "error"),
    [
        (True, 1, ErrorCode.none),
        (False, -1, ErrorCode.none),
        (True, 2, ErrorCode.rebootstrap_required),
        (True, -1, ErrorCode.invalid_request),
        (False, 1, ErrorCode.invalid_request),
    ],
)
async def test_a_client_that_means_another_broker_is_sent_away(
    client: MemoryClient, is_named: bool, node_id: int, error: ErrorCode
) -> None:
    cluster_id = client.broker.metadata.image.cluster_id if is_named else None
    answer = await client.ask(API_VERSIONS, API_VERSIONS_5, cluster_id=cluster_id, node_id=node_id, **SOFTWARE)
    assert answer.error_code is error
    assert bool(answer.api_keys) is (error is ErrorCode.none)


async def test_a_client_that_means_another_cluster_is_sent_away(client: MemoryClient) -> None:
    answer = await client.ask(API_VERSIONS, API_VERSIONS_5, cluster_id="another", node_id=1, **SOFTWARE)
    assert answer.error_code is ErrorCode.rebootstrap_required


async def committed(client: MemoryClient, topic_id: UUID, member_epoch: int = -1) -> ErrorCode:
    """Commit an offset in a new transaction, and return the error of the partition."""
    await client.broker.coordinators.transactions.find_coordinator(CALLER, TRANSACTIONAL_ID)
    await client.broker.coordinators.groups.find_coordinator(CALLER, GROUP)
    while True:
        producer = await client.ask(22, 4, transactional_id=TRANSACTIONAL_ID, transaction_timeout=60_000)
        if producer.error_code is ErrorCode.none:
            break
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    while True:
        answer = await client.ask(
            TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_6, transactional_id=TRANSACTIONAL_ID, group_id=GROUP,
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
            generation_id_or_member_epoch=member_epoch, member_id="", topics=[
                {"topic_id": topic_id, "partitions": [partition]}
            ],
        )  # fmt: skip
        assert [topic.topic_id for topic in answer.topics] == [topic_id]
        error: ErrorCode = answer.topics[0].partitions[0].error_code
        if error is not ErrorCode.coordinator_load_in_progress:
            return error


async def test_offsets_of_a_transaction_are_committed_by_topic_id(client: MemoryClient) -> None:
    [topic_id] = [key for key, name in client.broker.metadata.image.names_by_id.items() if name == "t"]
    assert await committed(client, topic_id) is ErrorCode.none
    assert await committed(client, uuid4()) is ErrorCode.unknown_topic_id


async def test_a_group_that_does_not_exist_is_named_as_such(client: MemoryClient) -> None:
    [topic_id] = [key for key, name in client.broker.metadata.image.names_by_id.items() if name == "t"]
    assert await committed(client, topic_id, member_epoch=3) is ErrorCode.group_id_not_found
