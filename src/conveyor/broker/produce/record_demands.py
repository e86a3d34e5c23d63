"""The stage `look at records`: checks the demands of a topic and of message ids on decompressed records."""

from collections import deque

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.batch import BatchHeader
from conveyor.records.compression import Unpacked
from conveyor.records.record import raw_records
from conveyor.records.record_checks import check_records, demands_record_checks
from conveyor.records.timestamps import is_too_new
from conveyor.settings.tree import TopicSettings

MAX_MARKED_RECORDS = 10_000
"""The most records in a batch with ids, because the event loop registers them. librdkafka sends no more."""


def check_demands(header: BatchHeader, content: Unpacked, topic: TopicSettings, now_ms: int) -> None:
    """Check every record if the topic demands it. Raises as `check_records` does."""
    if demands_record_checks(topic) or is_too_new(header.max_timestamp, topic, now_ms):
        check_records(header, content, topic, now_ms)


def check_marked_size(header: BatchHeader, content: Unpacked) -> None:
    """Limit the size of a batch with ids. Raises UnreadableBatch, RequestError (MESSAGE_TOO_LARGE).

    UnreadableBatch comes first: a producer can divide a large batch, but cannot repair an invalid one by dividing it.
    """
    if header.records_count > MAX_MARKED_RECORDS:
        deque(raw_records(header, content, skims=True), maxlen=0)
        reason = f"{header.records_count} records: the limit with ids is {MAX_MARKED_RECORDS}"
        raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, reason)
