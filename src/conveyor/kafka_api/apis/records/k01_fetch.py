"""Fetch (key 1).

v4 isolation level · v5 log start offset · v7 sessions (KIP-227) · v9 leader epoch · v11 rack and preferred replica
(KIP-392) · v12 flexible · v13 topic ids (KIP-516) · v15 replica state · v16 current leader and its endpoint (KIP-951) ·
v18 high watermark in requests.

The response is packed by hand around file slices, which the socket layer sends unchanged from disk.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from struct import Struct
from typing import Any

from conveyor.broker.fetch.fetch_sessions import (
    FIRST_EPOCH,
    LAST_EPOCH,
    NO_SESSION,
    FetchSession,
    PartitionKey,
    SessionPartition,
    TopicKey,
    epoch_after,
    partition_key,
    wrong_epoch,
)
from conveyor.broker.fetch.fetcher import Fetched, FetchPosition, FetchWait
from conveyor.kafka_api.access.operations import permits, topic_refused
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall, Part
from conveyor.kafka_api.wire.leader_hints import NO_TAGS, ClientView, partition_tags, response_tags
from conveyor.kafka_api.wire.packing import array_length, null_array, records_length, string
from conveyor.kernel.access.declared_access import READ
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.log.transactions.aborted_entries import AbortedTransaction

_LEADER_HINTS = 16
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
_THROTTLE = Struct(">i")
_REPLICA = Struct(">i")
_ABORTED = Struct(">qq")
_CURRENT_LEADER_TAG = 1
_NO_REPLICA = b"\xff\xff\xff\xff"
_NO_UUID = bytes(16)
_MILLISECOND = timedelta(milliseconds=1)
_WAIT_BYTES = 2 << 10
_POSITION_BYTES = 700
"""Memory of a fetch that waits, and of each of its partitions: its position, its result, and what listens to changes.
A session may have many partitions that the request does not name.
"""


def handle(call: KafkaCall) -> None:
    """Read every partition, and answer when there are enough bytes or the client's maximum wait has passed."""
    request = call.request
    if _replica_id(request) >= 0:
        return _refuse_replica(call)
    epoch = getattr(request, "session_epoch", LAST_EPOCH)
    positions = _positions(call)
    if epoch in (FIRST_EPOCH, LAST_EPOCH):
        call.broker.fetch.sessions.close(getattr(request, "session_id", NO_SESSION))
        return _fetch(call, positions, call.guarded(_answer_all, positions))
    try:
        session = _continue_session(call, positions)
    except RequestError as error:
        return _answer_unread(call, error)
    if session is None:
        return _fetch(call, positions, call.guarded(_answer_all, positions))
    names = call.broker.metadata.image.names_by_id
    _fetch(call, session.positions(names), call.guarded(_answer_changes, session))


def _replica_id(request: Any) -> int:
    """Return the broker that fetches to replicate; a negative number for consumers."""
    state = getattr(request, "replica_state", None)
    replica_id: int = request.replica_id if state is None else state.replica_id
    return replica_id


def _refuse_replica(call: KafkaCall) -> None:
    """Brokers replicate by a protocol of their own, see docs/decisions."""
    error = RequestError(ErrorKind.INVALID_REQUEST, "replica ids are for brokers, which do not replicate by Fetch")
    results = [Fetched(error=error) for topic in call.request.topics for _ in topic.partitions]
    _answer_unread(call, error, call.request.topics, results)


def _positions(call: KafkaCall) -> list[FetchPosition]:
    names = call.broker.metadata.image.names_by_id
    by_id = call.header.api_version >= _TOPIC_IDS
    return [
        FetchPosition(
            names.get(topic.topic_id, "") if by_id else topic.topic,
            partition.partition,
            partition.fetch_offset,
            partition.partition_max_bytes,
            getattr(partition, "current_leader_epoch", -1),
        )
        for topic in call.request.topics
        for partition in topic.partitions
    ]


def _topic_key(call: KafkaCall, topic: Any) -> TopicKey:
    """Return the topic's id, or its name in versions without topic ids."""
    key: TopicKey = topic.topic_id if call.header.api_version >= _TOPIC_IDS else topic.topic
    return key


def _session_partitions(call: KafkaCall, positions: Sequence[FetchPosition]) -> Iterator[SessionPartition]:
    """Yield the request's partitions as those of a new session, which has reported nothing about them."""
    following = iter(positions)
    for topic in call.request.topics:
        key = _topic_key(call, topic)
        for _ in topic.partitions:
            yield SessionPartition(key, next(following))


def _continue_session(call: KafkaCall, positions: Sequence[FetchPosition]) -> FetchSession | None:
    request = call.request
    forgotten: list[PartitionKey] = [
        partition_key(_topic_key(call, topic), number)
        for topic in request.forgotten_topics_data
        for number in topic.partitions
    ]
    return call.broker.fetch.sessions.continue_session(
        request.session_id,
        request.session_epoch,
        _session_partitions(call, positions),
        forgotten,
        by_id=call.header.api_version >= _TOPIC_IDS,
        now_ms=call.broker.clock.steady_ms(),
    )


def _fetch(call: KafkaCall, positions: Sequence[FetchPosition], finished: Callable[[Sequence[Fetched]], None]) -> None:
    request = call.request
    wait = FetchWait(request.max_wait // _MILLISECOND, request.min_bytes, request.max_bytes)
    wait.reads_committed = request.isolation_level == _READ_COMMITTED
    if call.header.api_version >= _PREFERRED_REPLICA and request.rack_id:
        wait.rack = call.broker.fetch.replica_reads.from_rack(request.rack_id)
    if call.broker.clients.access.rules is not None:
        wait.refusal = partial(_refusal, call)
    if call.meter is not None:
        wait.max_bytes = call.meter.max_fetch_bytes(request.max_bytes)
    cancel = call.broker.fetch.fetcher.fetch(call.caller, positions, wait, finished)
    if cancel is not None:
        call.weigh(_WAIT_BYTES + len(positions) * _POSITION_BYTES)
    call.wait(cancel)


def _refusal(call: KafkaCall, topic: str) -> RequestError | None:
    """Return why the client may not read a topic. An id of no topic, without a name, is not refused."""
    return topic_refused(topic) if topic and not permits(call, READ, topic) else None


def _answer_all(call: KafkaCall, positions: Sequence[FetchPosition], results: Sequence[Fetched]) -> None:
    """Answer with all results, and open a session if the request wants one: with many partitions, in several turns."""
    if not _may_fetch(call, results):
        return _answer_unread(call)
    if getattr(call.request, "session_epoch", LAST_EPOCH) != FIRST_EPOCH:
        return _answer_read(call, results, NO_SESSION)
    answered = zip(_session_partitions(call, positions), results, strict=True)
    if call.size.is_long:
        return call.wait(call.start(_answer_in_long_session(call, answered, results)).cancel)
    partitions = {_sent(partition, fetched): partition for partition, fetched in answered}
    _answer_read(call, results, _open_session(call, partitions))


async def _answer_in_long_session(
    call: KafkaCall, answered: Iterable[tuple[SessionPartition, Fetched]], results: Sequence[Fetched]
) -> None:
    in_turns = call.broker.slices.each(answered)
    partitions = {_sent(partition, fetched): partition async for partition, fetched in in_turns}
    _answer_read(call, results, _open_session(call, partitions))


def _answer_read(call: KafkaCall, results: Sequence[Fetched], session_id: int) -> None:
    view = call.broker.metadata.image.brokers, call.caller.listener
    topics = call.request.topics
    call.answer_encoded(
        lambda _: encode(call, topics, results, view=view, session_id=session_id), len(results) + len(topics)
    )


def _sent(partition: SessionPartition, fetched: Fetched) -> PartitionKey:
    """Note what a partition of a new session is answered with. Returns its key."""
    partition.record_sent(fetched)
    return partition.key


def _may_fetch(call: KafkaCall, results: Sequence[Fetched]) -> bool:
    """Return whether quotas allow these records. If not, the response has no records but a throttle time."""
    return call.meter is None or call.meter.may_fetch(
        sum(result.records.length for result in results if result.records)
    )


def _answer_unread(
    call: KafkaCall,
    error: RequestError | None = None,
    topics: Sequence[Any] = (),
    results: Sequence[Fetched] = (),
    *,
    session_id: int = NO_SESSION,
) -> None:
    """Answer without records: because of an error, or of a quota."""
    call.answer_encoded(
        lambda throttle_ms: encode(call, topics, results, error, session_id=session_id, throttle_ms=throttle_ms)
    )


def _open_session(call: KafkaCall, partitions: dict[PartitionKey, SessionPartition]) -> int:
    by_id = call.header.api_version >= _TOPIC_IDS
    return call.broker.fetch.sessions.open(partitions, by_id=by_id, now_ms=call.broker.clock.steady_ms())


def _answer_changes(call: KafkaCall, session: FetchSession, results: Sequence[Fetched]) -> None:
    """Answer with the changed partitions, or with an error if the session has advanced to another request."""
    epoch = call.request.session_epoch
    if session.next_epoch != epoch_after(epoch):
        error = wrong_epoch(session, epoch)
        return _answer_unread(call, error, session_id=session.session_id)
    if not _may_fetch(call, results):
        return _answer_unread(call, session_id=session.session_id)
    topics: dict[str | bytes | None, _ChangedTopic] = {}
    for partition, fetched in session.changes(results):
        key, _ = partition.key
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = _ChangedTopic(partition.topic, partition.topic, [], [])
        topic.partitions.append(partition.position)
        topic.results.append(fetched)
    changed = [fetched for topic in topics.values() for fetched in topic.results]
    view = call.broker.metadata.image.brokers, call.caller.listener
    call.answer_encoded(
        lambda _: encode(call, list(topics.values()), changed, view=view, session_id=session.session_id),
        len(changed),
    )


@dataclass(slots=True)
class _ChangedTopic:
    """A topic for `encode`. topic and topic_id: both the id, or both the name in versions without topic ids."""

    topic: TopicKey
    topic_id: TopicKey
    partitions: list[FetchPosition]
    results: list[Fetched]


def encode(
    call: KafkaCall,
    topics: Sequence[Any],
    results: Sequence[Fetched],
    error: RequestError | None = None,
    *,
    view: ClientView | None = None,
    session_id: int = NO_SESSION,
    throttle_ms: int = 0,
) -> list[Part]:
    """Encode the response as bytes and file slices. results: one for each partition, in the order of `topics`."""
    version = call.header.api_version
    flexible = version >= _FLEXIBLE
    following = iter(results)
    out = _Parts(b"\0" if flexible else b"")
    out.add(_THROTTLE.pack(throttle_ms))
    if version >= _SESSIONS:
        out.add(_SESSION.pack(result_errors.code(error), session_id))
    out.add(array_length(len(topics), flexible))
    for topic in topics:
        if version >= _TOPIC_IDS:
            out.add(topic.topic_id.bytes if topic.topic_id else _NO_UUID)
        else:
            out.add(string(topic.topic, flexible))
        out.add(array_length(len(topic.partitions), flexible))
        for partition in topic.partitions:
            _add_partition(out, version, partition.partition, next(following), call.request.isolation_level)
        if flexible:
            out.add(b"\0")
    if version >= _LEADER_HINTS:
        out.add(response_tags([result.error for result in results], view))
    elif flexible:
        out.add(NO_TAGS)
    return out.finish(call.header.correlation_id)


def _add_partition(out: "_Parts", version: int, index: int, fetched: Fetched, isolation_level: int) -> None:
    flexible = version >= _FLEXIBLE
    high_watermark, stable_offset = fetched.high_watermark, fetched.last_stable_offset
    code = result_errors.code_by_id(fetched.error) if version >= _TOPIC_IDS else result_errors.code(fetched.error)
    if version >= _LOG_START_OFFSET:
        out.add(_PARTITION.pack(index, code, high_watermark, stable_offset, fetched.log_start_offset))
    else:
        out.add(_PARTITION_V4.pack(index, code, high_watermark, stable_offset))
    if isolation_level == _READ_COMMITTED:
        _add_aborted(out, fetched.aborted, flexible)
    else:
        out.add(null_array(flexible))
    if version >= _PREFERRED_REPLICA:
        out.add(_REPLICA.pack(fetched.preferred_replica) if fetched.preferred_replica >= 0 else _NO_REPLICA)
    if fetched.records is None:
        out.add(records_length(0, flexible))
    else:
        out.add(records_length(fetched.records.length, flexible))
        out.add_slice(fetched.records)
    if version >= _LEADER_HINTS:
        out.add(partition_tags(fetched.error, _CURRENT_LEADER_TAG))
    elif flexible:
        out.add(NO_TAGS)


def _add_aborted(out: "_Parts", aborted: Sequence[AbortedTransaction], flexible: bool) -> None:
    out.add(array_length(len(aborted), flexible))
    for transaction in aborted:
        out.add(_ABORTED.pack(transaction.producer_id, transaction.first_offset))
        if flexible:
            out.add(NO_TAGS)


class _Parts:
    """Collects the parts of a response, joins the bytes between file slices, and counts the total size."""

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
