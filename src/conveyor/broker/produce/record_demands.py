"""The stage `look at records`: checks the demands of a topic, an inbox and message ids on decompressed records."""

from collections import deque

from conveyor.delay.forwarding_batches import MAX_DELAYED_BYTES
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.batch import COMPRESSION_MASK, BatchHeader
from conveyor.records.compression import Unpacked, contains
from conveyor.records.message_attributes import PREFIX
from conveyor.records.record import raw_records
from conveyor.records.record_checks import check_records, demands_record_checks
from conveyor.records.timestamps import is_too_new, stamps_records
from conveyor.settings.tree import TopicSettings

MAX_MARKED_RECORDS = 10_000
"""The most records in a batch with ids or delays, because the event loop registers them. librdkafka sends no more."""

_ATTRIBUTE_PREFIX = PREFIX.encode()


def may_have_delays(content: Unpacked) -> bool:
    """Return whether decompressed records may contain a delay."""
    return contains(content, _ATTRIBUTE_PREFIX)


def check_demands(
    header: BatchHeader, content: Unpacked, topic: TopicSettings, now_ms: int, *, has_delays: bool
) -> None:
    """Check every record if the topic or the inbox demands it. Raises as `check_records` does.

    has_delays: the batch goes to an inbox, which reads its delays.
    """
    if has_delays or demands_record_checks(topic) or is_too_new(header.max_timestamp, topic, now_ms):
        check_records(header, content, topic, now_ms)


def check_marked_size(header: BatchHeader, content: Unpacked, topic: TopicSettings, *, has_delays: bool) -> None:
    """Limit the size of a batch with ids or delays. Raises UnreadableBatch, RequestError (MESSAGE_TOO_LARGE).

    UnreadableBatch comes first: a producer can divide a large batch, but cannot repair an invalid one by dividing it.
    """
    if header.records_count > MAX_MARKED_RECORDS:
        deque(raw_records(header, content, skims=True), maxlen=0)
        reason = f"{header.records_count} records: the limit with ids or delays is {MAX_MARKED_RECORDS}"
        raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, reason)
    is_taken_apart = header.records_count > 1 or stamps_records(topic)
    is_packed = header.attributes & COMPRESSION_MASK
    if has_delays and is_taken_apart and is_packed and len(content) > MAX_DELAYED_BYTES:
        reason = f"unpacks to {len(content)} bytes: the limit with delays is {MAX_DELAYED_BYTES}"
        raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, reason)
