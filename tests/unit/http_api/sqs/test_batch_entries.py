"""The ids of a batch's entries."""

from collections.abc import Sequence

import pytest

from conveyor.http_api.sqs.content.batch_entries import check_entry_ids
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind

INVALID_ID = (
    "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
    "It can be at most 80 letters long."
)


@pytest.mark.parametrize("ids", [["a"], [str(number) for number in range(10)], ["x" * 80, "-_A9"]])
def test_permitted_ids(ids: Sequence[str]) -> None:
    check_entry_ids(ids, "Entry")


@pytest.mark.parametrize(
    ("ids", "kind", "message"),
    [
        ([], SqsErrorKind.EMPTY_BATCH_REQUEST, "There should be at least one Entry in the request."),
        (
            [str(number) for number in range(11)],
            SqsErrorKind.TOO_MANY_ENTRIES_IN_BATCH_REQUEST,
            "Maximum number of entries per request are 10. You have sent 11.",
        ),
        (["a", "b", "a"], SqsErrorKind.BATCH_ENTRY_IDS_NOT_DISTINCT, "Id a repeated."),
        *(
            (
                [entry_id],
                SqsErrorKind.INVALID_BATCH_ENTRY_ID,
                INVALID_ID,
            )
            for entry_id in ("", "a:b", "é", "x" * 81, "a\n")
        ),
    ],
)
def test_refused_ids(ids: Sequence[str], kind: SqsErrorKind, message: str) -> None:
    with pytest.raises(SqsError) as caught:
        check_entry_ids(ids, "Entry")
    assert (caught.value.sqs_kind, caught.value.message) == (kind, message)
