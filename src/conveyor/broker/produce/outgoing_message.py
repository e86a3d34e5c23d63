"""A message to publish and its result; the choice of its partition and its size in a batch."""

from collections.abc import Sequence
from typing import NamedTuple

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.records.batch import NAMES_PUBLISHER, TRANSACTIONAL
from conveyor.records.checked_batch import CheckedBatch, own_batch
from conveyor.records.message import Message
from conveyor.records.message_attributes import LAST_TIME_MS, PUBLISHER
from conveyor.records.partitioner import partition_for_key
from conveyor.records.publishers import has_publisher, without_publisher
from conveyor.records.record import Header, encode_batch, name_bytes

_RECORD_BYTES = 40
"""The maximum size of a record besides its key, value and headers, and of each header besides its name and value."""


class OutgoingMessage(NamedTuple):
    """A message to publish. Without a partition, the key determines it, then `conveyor-dedup-id`. The default time is
    now.

    Headers contain its queue attributes, such as a delay: see `conveyor.records.message_attributes`.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Transaction(NamedTuple):
    """The transaction that messages belong to: its transactional id and its producer."""

    transactional_id: str
    producer: ProducerIdentity


class PublishedMessage(NamedTuple):
    """The place of a published message. duplicate: of the earlier message there with this `conveyor-dedup-id`."""

    message_id: str
    partition: int
    offset: int
    duplicate: bool


def check_outgoing(topic: str, message: OutgoingMessage, partition_count: int) -> RequestError | None:
    """Return why a message cannot be published; None if it can be."""
    if message.partition is not None and not 0 <= message.partition < partition_count:
        reason = f"topic '{topic}' has partitions 0 to {partition_count - 1}, not {message.partition}"
        return RequestError(ErrorKind.INVALID_REQUEST, reason)
    if message.timestamp_ms is not None and not 0 <= message.timestamp_ms <= LAST_TIME_MS:
        reason = f"timestamp {message.timestamp_ms} is not within 0 to {LAST_TIME_MS} ms since 1970"
        return RequestError(ErrorKind.INVALID_REQUEST, reason)
    return None


def choose_partition(
    message: OutgoingMessage, dedup_id: bytes | None, partition_count: int, keyless_partition: int
) -> int:
    """Return the partition of a message. keyless_partition: for one without partition, key and deduplication id."""
    if message.partition is not None:
        return message.partition
    key = message.key if message.key is not None else dedup_id
    return keyless_partition if key is None else partition_for_key(key, partition_count)


def named(message: OutgoingMessage, publisher: bytes) -> OutgoingMessage:
    """Return a message with the header of its publisher in place of any that it has; see `publisher_of`."""
    headers = without_publisher(message.headers)
    return message._replace(headers=(*headers, (PUBLISHER, publisher)) if publisher else headers)


def max_size_bytes(message: OutgoingMessage | Message) -> int:
    """Return the most bytes that a message occupies in an uncompressed batch."""
    size = len(message.key or b"") + len(message.value or b"") + _RECORD_BYTES
    if message.headers:
        size += sum(len(name_bytes(name)) + len(value or b"") + _RECORD_BYTES for name, value in message.headers)
    return size


def encode_messages(
    messages: Sequence[OutgoingMessage], now_ms: int, transaction: Transaction | None = None, *, is_named: bool = False
) -> CheckedBatch:
    """Return one batch of messages. now_ms: the timestamp of messages without one. is_named: a message without the
    header of its publisher does not get one later.

    A batch of a transaction has no sequence: several brokers may publish for the same producer.
    """
    records = [
        (now_ms if message.timestamp_ms is None else message.timestamp_ms, message.key, message.value, message.headers)
        for message in messages
    ]
    is_named = is_named or any(headers and has_publisher(headers) for _, _, _, headers in records)
    attributes = NAMES_PUBLISHER if is_named else 0
    if transaction is None:
        return own_batch(encode_batch(records, attributes=attributes))
    producer_id, producer_epoch = transaction.producer
    return own_batch(
        encode_batch(
            records, attributes=attributes | TRANSACTIONAL, producer_id=producer_id, producer_epoch=producer_epoch
        )
    )
