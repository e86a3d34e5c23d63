"""The results of a batch: those of the entries that succeeded, and the errors of the others."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from conveyor.http_api.sqs.protocols.sqs_members import BatchResultErrorEntry
from conveyor.http_api.sqs.sqs_errors import SQS_ERRORS, sqs_kind_of, sqs_message_of
from conveyor.kernel.errors import RequestError


class Entry(Protocol):
    """An entry of a batch."""

    @property
    def id(self) -> str: ...


Made = TypeVar("Made")


def divide(
    entries: Iterable[Entry], made: Iterable[Made | RequestError]
) -> tuple[list[Made] | None, list[BatchResultErrorEntry] | None]:
    """Return the results of the entries that succeeded, and of those that failed; None if there are none."""
    successful: list[Made] = []
    failed: list[BatchResultErrorEntry] = []
    for entry, result in zip(entries, made, strict=True):
        if isinstance(result, RequestError):
            failed.append(_failure(entry.id, result))
        else:
            successful.append(result)
    return successful or None, failed or None


def _failure(entry_id: str, error: RequestError) -> BatchResultErrorEntry:
    codes = SQS_ERRORS[sqs_kind_of(error)]
    message = sqs_message_of(error, is_query=False)
    return BatchResultErrorEntry(id=entry_id, sender_fault=codes.is_senders, code=codes.query_code, message=message)
