"""The messages of one request, divided into a few batches for each partition, and the result of each message."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from conveyor.broker.produce.acknowledgement import Published
from conveyor.broker.produce.outgoing_message import (
    OutgoingMessage,
    PublishedMessage,
    Transaction,
    check_outgoing,
    choose_partition,
    encode_messages,
    max_size_bytes,
    named,
)
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.checked_batch import CheckedBatch
from conveyor.records.message import format_message_id
from conveyor.records.message_attributes import DEDUP_ID, last_header
from conveyor.records.publishers import publisher_of
from conveyor.records.record_checks import RefusedRecords

_STEP_WEIGHT = 10_000
_BYTES_PER_WEIGHT = 128
"""Messages handled in one tick of the event loop: each has a weight of 10, and 1 for each of its headers and each
_BYTES_PER_WEIGHT of its value.
"""

_BATCH_BYTES = 61
_MOST_BATCH_BYTES = 1 << 20
"""A batch is larger only if a single message is, even if the topic allows larger batches."""

OTHER_REFUSED = "another message of the same request was refused: send this one again"
"""The refusal of a valid message that is in one batch with an invalid one."""

Result: TypeAlias = PublishedMessage | RequestError


class PublishRequest(NamedTuple):
    """See `MessagePublisher.submit`."""

    caller: Caller
    topic: str
    messages: Sequence[OutgoingMessage]
    acks: int
    transaction: Transaction | None
    are_copies: bool = False


class MessageBatches:
    """See the module's docstring. No batch is above the limit of its topic unless a single message is.

    chunks: of each batch the partition, and the indexes of its messages. deduplicates: whether a message has an id.
    """

    def __init__(
        self,
        request: PublishRequest,
        partition_count: int,
        keyless_partition: int,
        max_message_bytes: Callable[[str, int], int],
    ) -> None:
        self.request = request
        self.chunks: list[tuple[int, list[int]]] = []
        self.deduplicates = False
        self._partition_count = partition_count
        self._keyless_partition = keyless_partition
        self._max_message_bytes = max_message_bytes
        self._publisher = None if request.are_copies else publisher_of(request.caller)
        self._messages = list(request.messages)
        self._results: list[Result | None] = [None] * len(request.messages)
        self._open: dict[int, tuple[list[int], int]] = {}
        """Of each partition the messages of its latest batch, and the bytes that still fit into it."""

    def add(self, indexes: range) -> None:
        """Add messages of the request. Raises RequestError (UNKNOWN_TOPIC)."""
        topic, messages, publisher = self.request.topic, self._messages, self._publisher
        for index in indexes:
            message = messages[index]
            if publisher is not None and (publisher or message.headers):
                message = messages[index] = named(message, publisher)
            dedup_id = last_header(message.headers, DEDUP_ID) if message.headers else None
            if message.partition is not None or message.timestamp_ms is not None:
                error = check_outgoing(topic, message, self._partition_count)
                if error is not None:
                    self._results[index] = error
                    continue
            number = choose_partition(message, dedup_id, self._partition_count, self._keyless_partition)
            self.deduplicates = self.deduplicates or bool(dedup_id)
            size = max_size_bytes(message)
            chunk, left = self._open.get(number, (None, 0))
            if chunk is None or size > left:
                chunk, left = [], min(self._max_message_bytes(topic, number), _MOST_BATCH_BYTES) - _BATCH_BYTES
                self.chunks.append((number, chunk))
            chunk.append(index)
            self._open[number] = chunk, left - size

    def is_large(self, chunk: tuple[int, list[int]]) -> bool:
        """Return whether a batch takes long to encode: it has one large message."""
        return sum(max_size_bytes(self._messages[index]) for index in chunk[1]) > _MOST_BATCH_BYTES

    def encode(self, chunk: tuple[int, list[int]], now_ms: int) -> tuple[int, CheckedBatch]:
        number, indexes = chunk
        messages = [self._messages[index] for index in indexes]
        request = self.request
        return number, encode_messages(messages, now_ms, request.transaction, is_named=request.are_copies)

    def results_of(self, outcomes: Sequence[Published]) -> list[Result] | RequestError:
        """Return one result for each message, in order, or the error of the whole request. outcomes: of the batches."""
        if self.request.transaction is not None and (error := _uncertainty(outcomes)) is not None:
            return error
        results = self._results
        for (partition, indexes), outcome in zip(self.chunks, outcomes, strict=True):
            is_plain = outcome.error is None and not outcome.duplicates
            for place, index in enumerate(indexes):
                offset = outcome.base_offset + place
                results[index] = (
                    PublishedMessage(f"{partition}-{offset}", partition, offset, False)
                    if is_plain
                    else _result(partition, place, outcome)
                )
        return [result for result in results if result is not None]


def steps_of(messages: Sequence[OutgoingMessage]) -> list[range]:
    """Divide messages, by their indexes, into steps of one tick of the event loop each."""
    steps: list[range] = []
    start = weight = 0
    for index, message in enumerate(messages):
        weight += 10 + len(message.headers) + len(message.value or b"") // _BYTES_PER_WEIGHT
        if weight >= _STEP_WEIGHT:
            steps.append(range(start, index + 1))
            start, weight = index + 1, 0
    return [*steps, range(start, len(messages))]


def _uncertainty(published: Sequence[Published]) -> RequestError | None:
    """Return the error if a batch of a transaction may be stored although it was not acknowledged."""
    for outcome in published:
        if outcome.error is not None and outcome.may_be_stored:
            reason = f"it is not known whether all messages were stored: {outcome.error.message}"
            return RequestError(ErrorKind.TRANSACTION_OUTCOME_UNKNOWN, reason)
    return None


def _result(partition: int, place: int, outcome: Published) -> PublishedMessage | RequestError:
    if outcome.error is not None:
        return _refusal(outcome.error, place)
    first = outcome.duplicates.get(place) if outcome.duplicates else None
    offset = outcome.base_offset + place if first is None else first
    return PublishedMessage(format_message_id(partition, offset), partition, offset, first is not None)


def _refusal(error: RequestError, place: int) -> RequestError:
    """Return why one message of a batch was refused. place: its index in the batch."""
    if not isinstance(error, RefusedRecords):
        return error
    own = next((refused.message for refused in error.record_errors if refused.batch_index == place), None)
    return RequestError(error.kind, OTHER_REFUSED if own is None else own)
