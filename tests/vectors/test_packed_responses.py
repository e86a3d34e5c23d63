"""The two responses that are packed by hand are, byte for byte, what kio writes; whatever their lengths."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.broker.fetch.fetcher import Fetched
from conveyor.broker.produce.publisher import Published
from conveyor.cluster.image import BrokerImage
from conveyor.kafka_api.apis.records import k00_produce, k01_fetch
from conveyor.kafka_api.wire.call import KafkaCall, RequestHeader
from conveyor.kafka_api.wire.codec import encode_response
from conveyor.kernel.access.caller import PLAINTEXT
from conveyor.kernel.errors import ErrorKind, FencedLeaderEpoch, NotLeader, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.kernel.ports import FileSlice
from conveyor.records.record_checks import RecordError, RefusedRecords
from conveyor.testing import MemoryDisk

TOPIC_ID = UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=200)
INT64 = st.integers(-1, 2**63 - 1)
TIMES = st.sampled_from([-1, 0, 1_700_000_000_123])
LEADER_ERRORS = (ErrorKind.NOT_LEADER, ErrorKind.FENCED_LEADER_EPOCH)
ERRORS = st.sampled_from(
    [
        None,
        ErrorKind.UNKNOWN_TOPIC,
        ErrorKind.MESSAGE_TOO_LARGE,
        ErrorKind.PARTITION_OFFLINE,
        ErrorKind.INVALID_RECORD,
        *LEADER_ERRORS,
    ]
)
LEADERS = st.tuples(st.sampled_from([None, 1, 2, 3, 4]), st.integers(0, 2**31 - 1))
BROKERS = {
    each.node_id: each
    for each in (
        BrokerImage(node_id=NodeId(1), host="one.example", port=9092),
        BrokerImage(node_id=NodeId(2), host="two.example", port=19092, rack="r"),
        BrokerImage(node_id=NodeId(3), host="h" * 130, port=65535, rack="k" * 130),
    )
}
"""Broker 4 leads, too, and is not known."""
REFUSED = st.lists(st.tuples(st.integers(0, 2**31 - 1), NAMES), max_size=3)


def code(kind: ErrorKind | None, by_id: bool) -> int:
    if kind is ErrorKind.UNKNOWN_TOPIC and by_id:
        return 100
    return 0 if kind is None else RequestError(kind, "").kafka_code


@pytest.mark.parametrize("version", range(3, 14))
@given(st.data())
@settings(max_examples=15)
def test_produce_response(version: int, data: st.DataObject) -> None:
    topics, results, leaders = [], [], set[int | None]()
    expected: list[dict[str, Any]] = []
    for _ in range(data.draw(st.integers(0, 3))):
        name, partitions = data.draw(NAMES), []
        indexes = data.draw(st.lists(st.integers(0, 2**31 - 1), max_size=140))
        for index in indexes:
            kind, base, when, start = data.draw(ERRORS), data.draw(INT64), data.draw(TIMES), data.draw(INT64)
            refused = data.draw(REFUSED) if kind is ErrorKind.INVALID_RECORD else []
            error = None if kind is None else RequestError(kind, name)
            if refused:
                error = RefusedRecords(ErrorKind.INVALID_RECORD, name, tuple(RecordError(*each) for each in refused))
            leader, epoch = data.draw(LEADERS)
            if kind is ErrorKind.NOT_LEADER:
                error = not_leader(name, leader, epoch)
                leaders.add(leader)
            results.append(Published(error, base, when, start))
            fields: dict[str, Any] = {"index": index, "error_code": code(kind, version >= 13), "base_offset": base}
            fields |= {"log_append_time": from_ms(when), "log_start_offset": start, "record_errors": [
                {"batch_index": at, "batch_index_error_message": why} for at, why in refused
            ]}  # fmt: skip
            if kind is ErrorKind.NOT_LEADER and version >= 10:
                fields["current_leader"] = {"leader_id": -1 if leader is None else leader, "leader_epoch": epoch}
            partitions.append(fields | {"error_message": None if kind is None else name})
        topics.append(
            SimpleNamespace(name=name, topic_id=TOPIC_ID, partition_data=[SimpleNamespace(index=i) for i in indexes])
        )
        expected.append({"name": name, "topic_id": TOPIC_ID, "partition_responses": partitions})
    packed = k00_produce.encode(version, 7, topics, results, view=(BROKERS, PLAINTEXT))
    response: dict[str, Any] = {"responses": expected}
    if version >= 10:
        response["node_endpoints"] = endpoints(leaders)
    written = encode_response(0, version, 7, response)
    assert packed == len(written).to_bytes(4, "big") + written


def not_leader(message: str, leader: int | None, epoch: int) -> NotLeader:
    return NotLeader(message, None if leader is None else NodeId(leader), LeaderEpoch(epoch))


def endpoints(leaders: set[int | None]) -> list[dict[str, Any]]:
    """Where the leaders that a response names are, as far as that is known."""
    known = [BROKERS[NodeId(each)] for each in sorted(each for each in leaders if each is not None) if each != 4]
    return [{"node_id": each.node_id, "host": each.host, "port": each.port, "rack": each.rack} for each in known]


def from_ms(milliseconds: int) -> datetime | None:
    """The type that kio has for this field."""
    return None if milliseconds < 0 else datetime.fromtimestamp(milliseconds / 1000, UTC)


@pytest.mark.parametrize("version", range(4, 19))
@given(st.data())
@settings(max_examples=15)
def test_fetch_response(version: int, data: st.DataObject) -> None:
    disk = MemoryDisk()
    file = disk.open("log", create=True)
    isolation = data.draw(st.sampled_from([0, 1]))
    topics, results, leaders = [], [], set[int | None]()
    expected: list[dict[str, Any]] = []
    for _ in range(data.draw(st.integers(0, 3))):
        name, partitions = data.draw(NAMES), []
        indexes = data.draw(st.lists(st.integers(0, 2**31 - 1), max_size=5))
        for index in indexes:
            kind, high, start, stable = data.draw(ERRORS), data.draw(INT64), data.draw(INT64), data.draw(INT64)
            content = data.draw(st.binary(max_size=300))
            records = FileSlice(file, file.size, len(content)) if content else None
            file.append([content])
            refused = data.draw(REFUSED) if kind is ErrorKind.INVALID_RECORD else []
            error = None if kind is None else RequestError(kind, name)
            if refused:
                error = RefusedRecords(ErrorKind.INVALID_RECORD, name, tuple(RecordError(*each) for each in refused))
            leader, epoch = data.draw(LEADERS)
            if kind in LEADER_ERRORS:
                moved = NotLeader if kind is ErrorKind.NOT_LEADER else FencedLeaderEpoch
                error = moved(name, None if leader is None else NodeId(leader), LeaderEpoch(epoch))
                leaders.add(leader)
            results.append(Fetched(error, high, start, records, last_stable_offset=stable))
            fields: dict[str, Any] = {"partition_index": index, "error_code": code(kind, version >= 13)}
            fields |= {
                "high_watermark": high,
                "last_stable_offset": stable,
                "log_start_offset": start,
                "records": content,
            }
            if kind in LEADER_ERRORS and version >= 16:
                fields["current_leader"] = {"leader_id": -1 if leader is None else leader, "leader_epoch": epoch}
            partitions.append(fields | {"aborted_transactions": () if isolation else None})
        parts = [SimpleNamespace(partition=each) for each in indexes]
        topics.append(SimpleNamespace(topic=name, topic_id=TOPIC_ID, partitions=parts))
        expected.append({"topic": name, "topic_id": TOPIC_ID, "partitions": partitions})
    request = SimpleNamespace(isolation_level=isolation)
    call = cast("KafkaCall", SimpleNamespace(header=RequestHeader(1, version, 7, ""), request=request))
    packed = b"".join(
        part if isinstance(part, bytes) else part.file.read(part.position, part.length)
        for part in k01_fetch.encode(call, topics, results, view=(BROKERS, PLAINTEXT))
    )
    response: dict[str, Any] = {"error_code": 0, "responses": expected}
    if version >= 16:
        response["node_endpoints"] = endpoints(leaders)
    written = encode_response(1, version, 7, response)
    assert packed == len(written).to_bytes(4, "big") + written
