"""The topic's demands on each record that a producer sends. Source: Kafka's LogValidator, KIP-467."""

from typing import NamedTuple

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.batch import BatchHeader
from conveyor.records.compression import Unpacked
from conveyor.records.record import raw_records
from conveyor.records.timestamps import check_newest, limits_age, stamps_records, timestamp_fault
from conveyor.settings.tree import TopicSettings

MAX_RECORD_ERRORS = 10
"""The most record errors of one batch: a request can have thousands of small batches with thousands of records each."""

_NO_KEY = "a record without a key cannot be compacted: give it one"


class RecordError(NamedTuple):
    """One record that the topic does not accept. batch_index: its index in its batch."""

    batch_index: int
    message: str


class RefusedRecords(RequestError):  # noqa: N818 - named for what it is
    """The batch is refused because some of its records are: INVALID_TIMESTAMP or INVALID_RECORD."""

    def __init__(self, kind: ErrorKind, message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(kind, message)
        self.record_errors = record_errors


def demands_record_checks(topic: TopicSettings) -> bool:
    """Return whether a topic has demands on each record, so that batches must be decompressed."""
    return "compact" in topic.cleanup_policy or limits_age(topic)


def check_records(header: BatchHeader, content: Unpacked, topic: TopicSettings, now_ms: int) -> None:
    """Check every decompressed record of a batch. Raises UnreadableBatch, RefusedRecords, RequestError."""
    needs_keys, checks_times = "compact" in topic.cleanup_policy, not stamps_records(topic)
    has_wrong_time = False
    errors: list[RecordError] = []
    refused_count = 0
    for index, (_, _, _, timestamp_ms, key, _, _) in enumerate(raw_records(header, content, skims=True)):
        fault = timestamp_fault(timestamp_ms, topic, now_ms) if checks_times else None
        if fault is not None:
            has_wrong_time = True
        elif needs_keys and key is None:
            fault = _NO_KEY
        if fault is not None:
            refused_count += 1
            if refused_count <= MAX_RECORD_ERRORS:
                errors.append(RecordError(index, fault))
    if errors:
        kind = ErrorKind.INVALID_TIMESTAMP if has_wrong_time else ErrorKind.INVALID_RECORD
        first = f"record {errors[0].batch_index}: {errors[0].message}"
        raise RefusedRecords(
            kind, f"{refused_count} of {header.records_count} records are refused; {first}", tuple(errors)
        )
    check_newest(header.max_timestamp, topic, now_ms)
