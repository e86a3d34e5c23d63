"""The rules for the entries of a batch: how many there are, and their ids. Errors have the words of AWS."""

import re
from collections.abc import Iterable

from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind

MAX_ENTRIES = 10
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


def check_entry_ids(ids: Iterable[str], entry: str) -> None:
    """Raise SqsError if a batch cannot have entries with these ids. entry: `SendMessageBatchRequestEntry` or so."""
    ids = list(ids)
    if not ids:
        raise SqsError(SqsErrorKind.EMPTY_BATCH_REQUEST, f"There should be at least one {entry} in the request.")
    if len(ids) > MAX_ENTRIES:
        raise SqsError(
            SqsErrorKind.TOO_MANY_ENTRIES_IN_BATCH_REQUEST,
            f"Maximum number of entries per request are {MAX_ENTRIES}. You have sent {len(ids)}.",
        )
    seen: set[str] = set()
    for entry_id in ids:
        if not _ID.fullmatch(entry_id):
            raise SqsError(
                SqsErrorKind.INVALID_BATCH_ENTRY_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if entry_id in seen:
            raise SqsError(SqsErrorKind.BATCH_ENTRY_IDS_NOT_DISTINCT, f"Id {entry_id} repeated.")
        seen.add(entry_id)
