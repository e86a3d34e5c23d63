"""Produce (key 0).

v3 magic 2 only · v5 log start offset · v7 zstd (KIP-110) · v8 record errors and messages (KIP-467) · v9 flexible ·
v10 current leader (KIP-951) · v11 TRANSACTION_ABORTABLE (KIP-890) · v12 the partitions take part in the transaction,
without AddPartitionsToTxn (KIP-890) · v13 topic ids.

The response is packed by hand: kio's writer takes about 12 us for one partition, this code about 1 us.
"""

from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Any

from conveyor.broker.produce.publisher import ACKS_NONE, Published
from conveyor.broker.slices import SLICE_ITEMS
from conveyor.kafka_api.access.operations import permits, request_name, topic_refused
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.transactions.reserved_ids import check_not_reserved
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kafka_api.wire.leader_hints import NO_TAGS, ClientView, partition_tags, response_tags
from conveyor.kafka_api.wire.packing import array_length, nullable_string, string
from conveyor.kernel.access.acl import ResourceType
from conveyor.kernel.access.declared_access import REFUSALS, WRITE
from conveyor.kernel.attempts import attempt
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Bytes
from conveyor.records.batch import COMPRESSION_MASK
from conveyor.records.compression import ZSTD
from conveyor.records.record_checks import RecordError, RefusedRecords

_TOPIC_IDS = 13
_ADDS_PARTITIONS = 12
_ABORTABLE = 11
_LEADER_HINTS = 10
_FLEXIBLE = 9
_RECORD_ERRORS = 8
_ZSTD = 7
_LOG_START_OFFSET = 5

_HEAD = Struct(">ii")
_PARTITION_V3 = Struct(">ihqq")
_PARTITION = Struct(">ihqqq")
_ONE = Struct(">ihqqqBBB")
_THROTTLE = Struct(">i")
_INDEX = Struct(">i")
_NO_UUID = bytes(16)
_CURRENT_LEADER_TAG = 0
_ATTRIBUTES = 22
"""Position of the lower byte of a batch's attributes."""

_Batch = tuple[str, int, Bytes]
"""Topic, partition, records."""
_Finish = Callable[[Sequence[Published]], None]
_Appended = Callable[[], None]

_SMALL_BYTES = 1 << 10
"""A request takes about as much without its records."""


def handle(call: KafkaCall) -> None:
    """Append the batch of every partition, and answer when all are as durable as `acks` requires."""
    request = call.request
    if call.meter is not None:
        call.meter.produced()
    if call.header.api_version < _ZSTD and _uses_zstd(request):
        return _refuse(call, ErrorKind.UNSUPPORTED_COMPRESSION, "zstd can be used from version 7 on")
    if call.header.api_version < _TOPIC_IDS:
        batches = [
            (topic.name, partition.index, partition.records)
            for topic in request.topic_data
            for partition in topic.partition_data
        ]
    else:
        names = call.broker.metadata.image.names_by_id
        batches = [
            (names.get(topic.topic_id, ""), partition.index, partition.records)
            for topic in request.topic_data
            for partition in topic.partition_data
        ]
    finish = partial(_finish if request.transactional_id is None else _finish_transactional, call)
    is_small = call.size.release is None and call.size.weight_bytes < _SMALL_BYTES
    appended = None if is_small else partial(_drop_records, call)
    if len(batches) > SLICE_ITEMS:
        _publish_in_slices(call, batches, finish, appended)
    else:
        _publish(call, batches, finish, appended)


def _publish(call: KafkaCall, batches: Sequence[_Batch], finish: _Finish, appended: _Appended | None) -> None:
    if call.broker.clients.access.rules is not None:
        batches, finish = _permitted(call, batches, finish)
        if not batches:
            finish([])
            return None if appended is None else appended()
    request, publisher = call.request, call.broker.produce.publisher
    try:
        if request.transactional_id is None:
            return publisher.publish(call.caller, batches, request.acks, finish, appended=appended)
        check_not_reserved(request.transactional_id)
        publisher.publish(
            call.caller, batches, request.acks, finish, transactional_id=request.transactional_id,
            adds=call.header.api_version >= _ADDS_PARTITIONS, appended=appended,
        )  # fmt: skip
    except RequestError as error:
        finish([Published(error=error) for _ in batches])


def _permitted(call: KafkaCall, batches: Sequence[_Batch], finish: _Finish) -> tuple[Sequence[_Batch], _Finish]:
    """Return the batches that the client may write, and a function that finishes with the results of all."""
    topics = [topic for topic, _, _ in batches]  # The function does not keep the records.
    refusals = _refusals(call, set(topics))
    if not refusals:
        return batches, finish

    def finish_all(published: Sequence[Published]) -> None:
        following = iter(published)
        finish([Published(error=refusals[topic]) if topic in refusals else next(following) for topic in topics])

    return [batch for batch in batches if batch[0] not in refusals], finish_all


def _refusals(call: KafkaCall, topics: set[str]) -> dict[str, RequestError]:
    """Return why the client may not write to some of the topics. Ids of no topic, without a name, are not refused."""
    name, access = call.request.transactional_id, call.broker.clients.access
    kind = ResourceType.TRANSACTIONAL_ID
    if name is not None and not access.permits(call.caller, request_name(call), WRITE, kind, name):
        return dict.fromkeys(
            topics, RequestError(REFUSALS[kind], f"no right to write with the transactional id '{name}'")
        )
    return {topic: topic_refused(topic) for topic in topics if topic and not permits(call, WRITE, topic)}


def _drop_records(call: KafkaCall) -> None:
    """Free the records, all of which are appended or refused: the answer may come late, and needs the names only."""
    if call.response is not None:
        return
    call.wait(None)
    dropped_bytes = 0
    for topic in call.request.topic_data:
        for partition in topic.partition_data:
            dropped_bytes += len(partition.records or b"")
            object.__setattr__(partition, "records", None)  # It is frozen, but nothing else refers to it.
    call.weigh(-dropped_bytes)


def _publish_in_slices(call: KafkaCall, batches: Sequence[_Batch], finish: _Finish, appended: _Appended | None) -> None:
    slices = [batches[start : start + SLICE_ITEMS] for start in range(0, len(batches), SLICE_ITEMS)]
    results: list[Sequence[Published]] = [()] * len(slices)
    unanswered = unappended = len(slices)

    def finish_one(number: int, published: Sequence[Published]) -> None:
        nonlocal unanswered
        results[number] = published
        unanswered -= 1
        if not unanswered:
            finish([result for of_slice in results for result in of_slice])

    def append_one() -> None:
        nonlocal unappended
        unappended -= 1
        if not unappended and appended is not None:
            appended()

    for number, chosen in enumerate(slices):
        publish = partial(_publish, call, chosen, partial(finish_one, number), append_one)
        call.broker.slices.later(partial(call.do, publish))


def _uses_zstd(request: Any) -> bool:
    batches = (partition.records or b"" for topic in request.topic_data for partition in topic.partition_data)
    return any(len(batch) > _ATTRIBUTES and batch[_ATTRIBUTES] & COMPRESSION_MASK == ZSTD for batch in batches)


def _finish(call: KafkaCall, results: Sequence[Published]) -> None:
    if call.request.acks == ACKS_NONE:
        return _finish_silently(call, results)
    if call.meter is not None:
        call.meter.answered()
    header, topics = call.header, call.request.topic_data
    view = call.broker.metadata.image.brokers, call.caller.listener
    # The caller is the partition, which must answer the other producers.
    attempt(
        call.fail,
        call.answer_encoded,
        lambda throttle_ms: [encode(header.api_version, header.correlation_id, topics, results, throttle_ms, view)],
        len(results) + len(topics),
    )


def _finish_transactional(call: KafkaCall, results: Sequence[Published]) -> None:
    """Send versions before 11 the error that they know for a partition that takes no part in the transaction."""
    for result in results:
        error = result.error
        if error is not None and error.kind is ErrorKind.TRANSACTION_ABORTABLE and call.header.api_version < _ABORTABLE:
            result.error = RequestError(ErrorKind.INVALID_TXN_STATE, error.message)
    _finish(call, results)


def _finish_silently(call: KafkaCall, results: Sequence[Published]) -> None:
    """Close the connection on an error, as Kafka does, because acks=0 has no response."""
    failure = next((result.error for result in results if result.error is not None), None)
    if failure is None:
        return call.answer_nothing()
    call.close_connection(
        f"client '{call.header.client_id}' produced with acks=0: {failure.kind.name}: {failure.message}"
    )


def _refuse(call: KafkaCall, kind: ErrorKind, message: str) -> None:
    count = sum(len(topic.partition_data) for topic in call.request.topic_data)
    _finish(call, [Published(error=RequestError(kind, message)) for _ in range(count)])


def encode(
    version: int,
    correlation_id: int,
    topics: Sequence[Any],
    results: Sequence[Published],
    throttle_ms: int = 0,
    view: ClientView | None = None,
) -> bytes:
    """Encode the response with length and header. results: one for each partition, in the order of the request."""
    flexible = version >= _FLEXIBLE
    following = iter(results)
    parts = [b"\0" if flexible else b"", array_length(len(topics), flexible)]
    for topic in topics:
        if version >= _TOPIC_IDS:
            parts.append(topic.topic_id.bytes if topic.topic_id else _NO_UUID)
        else:
            parts.append(string(topic.name, flexible))
        parts.append(array_length(len(topic.partition_data), flexible))
        parts += [_partition(version, partition.index, next(following), flexible) for partition in topic.partition_data]
        if flexible:
            parts.append(b"\0")
    parts.append(_THROTTLE.pack(throttle_ms))
    if version >= _LEADER_HINTS:
        parts.append(response_tags([result.error for result in results], view))
    elif flexible:
        parts.append(NO_TAGS)
    body = b"".join(parts)
    return _HEAD.pack(len(body) + 4, correlation_id) + body


def _partition(version: int, index: int, result: Published, flexible: bool) -> bytes:
    error = result.error
    if error is None and flexible:
        return _ONE.pack(
            index, 0, result.base_offset, result.append_timestamp_ms, result.log_start_offset, 1, 0, 0
        )  # fmt: skip
    code = result_errors.code_by_id(error) if version >= _TOPIC_IDS else result_errors.code(error)
    if version < _LOG_START_OFFSET:
        return _PARTITION_V3.pack(index, code, result.base_offset, result.append_timestamp_ms)
    packed = _PARTITION.pack(index, code, result.base_offset, result.append_timestamp_ms, result.log_start_offset)
    if version < _RECORD_ERRORS:
        return packed
    message = None if error is None else error.message
    refused = error.record_errors if isinstance(error, RefusedRecords) else ()
    record_errors = array_length(len(refused), flexible) + _record_errors(refused, flexible)
    packed += record_errors + nullable_string(message, flexible)
    if version >= _LEADER_HINTS:
        return packed + partition_tags(error, _CURRENT_LEADER_TAG)
    return packed + NO_TAGS if flexible else packed


def _record_errors(errors: Sequence[RecordError], flexible: bool) -> bytes:
    end = b"\0" if flexible else b""
    return b"".join(_INDEX.pack(error.batch_index) + nullable_string(error.message, flexible) + end for error in errors)
