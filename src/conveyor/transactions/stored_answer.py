"""The answer to a request that ran in a transaction, and its record in `__transaction_state`.

    key 17238  request id (string), owner (string; left out if empty)
    value 0    digest of the request (sized), answered at ms int64, content (sized)

A null value deletes the answer. The version of the key is Conveyor's own: Kafka's coordinator and tools skip keys of
versions that they do not know. An earlier version of Conveyor reads no owner: it takes the key for that of the id
alone, and finds the answer for any client.
"""

from typing import NamedTuple

import msgspec

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.state_machine import LogRecord
from conveyor.records.record_fields import FieldReader, FieldWriter

_KEY_VERSION = 0x4356
_VERSION = 0


class AnswerKey(NamedTuple):
    """The id that a client has chosen for a request, and who it is. owner: a user, as `User:alice`; empty for a client
    without a login, and in the answers of earlier versions.
    """

    request_id: str
    owner: str = ""


class NewAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to keep if the transaction of a request commits.

    digest: of the request, which tells two requests with one id apart. content: opaque to the coordinator.
    """

    key: AnswerKey
    digest: bytes
    content: bytes


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A kept answer. answered_ms: milliseconds since the epoch."""

    digest: bytes
    content: bytes
    answered_ms: int


def answer_record(key: AnswerKey, answer: StoredAnswer | None) -> LogRecord:
    """Return the record of a kept answer, or its tombstone."""
    named = FieldWriter().int16(_KEY_VERSION).string(key.request_id)
    encoded = (named.string(key.owner) if key.owner else named).done()
    if answer is None:
        return LogRecord(encoded, None)
    out = FieldWriter().int16(_VERSION).sized(answer.digest).int64(answer.answered_ms).sized(answer.content)
    return LogRecord(encoded, out.done())


def decode_answer_key(key: bytes) -> AnswerKey | None:
    """Return the key of a record, or None if the record is no answer. Raises StorageFailure."""
    reader = FieldReader(key)
    if reader.int16() != _KEY_VERSION:
        return None
    request_id = reader.text()
    return AnswerKey(request_id, reader.text() if reader.position < len(key) else "")


def decode_answer(value: bytes) -> StoredAnswer:
    """Decode the value of a record. Raises StorageFailure."""
    reader = FieldReader(value)
    version = reader.int16()
    if version != _VERSION:
        raise StorageFailure(f"an answer in __transaction_state has the unknown version {version}")
    digest, answered_ms = reader.sized(), reader.int64()
    return StoredAnswer(digest=digest, answered_ms=answered_ms, content=reader.sized())
