"""The answer to a request that ran in a transaction, and its record in `__transaction_state`.

    key 17238  request id (string)
    value 0    digest of the request (sized), answered at ms int64, content (sized)

A null value deletes the answer. The version of the key is Conveyor's own: Kafka's coordinator and tools skip keys of
versions that they do not know.
"""

import msgspec

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.state_machine import LogRecord
from conveyor.records.record_fields import FieldReader, FieldWriter

_KEY_VERSION = 0x4356
_VERSION = 0


class NewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to keep if the transaction of a request commits.

    digest: of the request, which tells two requests with one id apart. content: opaque to the coordinator.
    """

    request_id: str
    digest: bytes
    content: bytes


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A kept answer. answered_ms: milliseconds since the epoch."""

    digest: bytes
    content: bytes
    answered_ms: int


def answer_record(request_id: str, answer: StoredAnswer | None) -> LogRecord:
    """Return the record of a kept answer, or its tombstone."""
    key = FieldWriter().int16(_KEY_VERSION).string(request_id).done()
    if answer is None:
        return LogRecord(key, None)
    out = FieldWriter().int16(_VERSION).sized(answer.digest).int64(answer.answered_ms).sized(answer.content)
    return LogRecord(key, out.done())


def decode_request_id(key: bytes) -> str | None:
    """Return the request id of a key, or None if the key is not that of an answer. Raises StorageFailure."""
    reader = FieldReader(key)
    return reader.text() if reader.int16() == _KEY_VERSION else None


def decode_answer(value: bytes) -> StoredAnswer:
    """Decode the value of a record. Raises StorageFailure."""
    reader = FieldReader(value)
    version = reader.int16()
    if version != _VERSION:
        raise StorageFailure(f"an answer in __transaction_state has the unknown version {version}")
    digest, answered_ms = reader.sized(), reader.int64()
    return StoredAnswer(digest=digest, answered_ms=answered_ms, content=reader.sized())
