"""Fetch (key 1).

v4 isolation level · v5 log start offset · v7 sessions (KIP-227) · v9 leader epoch · v11 rack · v12 flexible ·
v13 topic ids (KIP-516) · v15 replica state · v16 leader endpoints · v18 high watermark in the request.

Sessions are declined: every answer has session id 0, which tells a client to send its whole list each time.

The response is packed by hand around file slices, which the socket layer sends as they lie on the disk.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from struct import Struct
from typing import Any

from conveyor.broker.fetch import Fetched, FetchPosition, FetchWait
from conveyor.kafka_api import errors
from conveyor.kafka_api.call import Call, Part
from conveyor.kafka_api.packing import array_length, null_array, records_length, string
from conveyor.kernel.errors import ERRORS, ErrorKind

_TOPIC_IDS = 13
_FLEXIBLE = 12
_PREFERRED_REPLICA = 11
_SESSIONS = 7
_LOG_START_OFFSET = 5
_READ_COMMITTED = 1

_HEAD = Struct(">ii")
_SESSION = Struct(">hi")
_PARTITION_V4 = Struct(">ihqq")
_PARTITION = Struct(">ihqqq")
_NO_THROTTLE = b"\0\0\0\0"
_NO_REPLICA = b"\xff\xff\xff\xff"
_NO_UUID = bytes(16)
_MILLISECOND = timedelta(milliseconds=1)


def handle(call: Call) -> None:
    """Read every partition; answer when there is enough, or when the client will wait no longer."""
    request = call.request
    if getattr(request, "session_id", 0) != 0:
        return call.answer_parts(encode(call, [], [], ErrorKind.FETCH_SESSION_NOT_FOUND))
    names = call.broker.topics.image.names_by_id
    by_id = call.api_version >= _TOPIC_IDS
    positions = [
        FetchPosition(
            names.get(topic.topic_id, "") if by_id else topic.topic,
            each.partition,
            each.fetch_offset,
            each.partition_max_bytes,
            getattr(each, "current_leader_epoch", -1),
        )
        for topic in request.topics
        for each in topic.partitions
    ]
    wait = FetchWait(request.max_wait // _MILLISECOND, request.min_bytes, request.max_bytes)
    call.cancel = call.broker.fetcher.fetch(positions, wait, partial(_finish, call))


def _finish(call: Call, results: Sequence[Fetched]) -> None:
    call.answer_parts(encode(call, call.request.topics, results))


def encode(call: Call, topics: Sequence[Any], results: Sequence[Fetched], error: ErrorKind | None = None) -> list[Part]:
    """The response to a request's topics, one result per partition in the request's order: bytes and file slices."""
    version = call.api_version
    flexible = version >= _FLEXIBLE
    following = iter(results)
    out = _Parts(b"\0" if flexible else b"")
    out.add(_NO_THROTTLE)
    if version >= _SESSIONS:
        out.add(_SESSION.pack(0 if error is None else ERRORS[error].kafka_code, 0))
    out.add(array_length(len(topics), flexible))
    for topic in topics:
        if version >= _TOPIC_IDS:
            out.add(topic.topic_id.bytes if topic.topic_id else _NO_UUID)
        else:
            out.add(string(topic.topic, flexible))
        out.add(array_length(len(topic.partitions), flexible))
        for each in topic.partitions:
            _add_partition(out, version, each.partition, next(following), call.request.isolation_level)
        if flexible:
            out.add(b"\0")
    if flexible:
        out.add(b"\0")
    return out.finish(call.correlation_id)


def _add_partition(out: "_Parts", version: int, index: int, fetched: Fetched, isolation_level: int) -> None:
    flexible = version >= _FLEXIBLE
    high_watermark = fetched.high_watermark
    code = errors.code_by_id(fetched.error) if version >= _TOPIC_IDS else errors.code(fetched.error)
    if version >= _LOG_START_OFFSET:
        out.add(_PARTITION.pack(index, code, high_watermark, high_watermark, fetched.log_start_offset))
    else:
        out.add(_PARTITION_V4.pack(index, code, high_watermark, high_watermark))
    out.add(array_length(0, flexible) if isolation_level == _READ_COMMITTED else null_array(flexible))
    if version >= _PREFERRED_REPLICA:
        out.add(_NO_REPLICA)
    if fetched.records is None:
        out.add(records_length(0, flexible))
    else:
        out.add(records_length(fetched.records.length, flexible))
        out.add_slice(fetched.records)
    if flexible:
        out.add(b"\0")


class _Parts:
    """Bytes between file slices, joined; and the size of it all."""

    def __init__(self, first: bytes) -> None:
        self._parts: list[Part] = []
        self._bytes = [first]
        self._size = 4 + len(first)

    def add(self, content: bytes) -> None:
        self._bytes.append(content)
        self._size += len(content)

    def add_slice(self, records: Any) -> None:
        self._parts.append(b"".join(self._bytes))
        self._parts.append(records)
        self._bytes = []
        self._size += records.length

    def finish(self, correlation_id: int) -> list[Part]:
        self._parts.append(b"".join(self._bytes))
        return [_HEAD.pack(self._size, correlation_id), *self._parts]
