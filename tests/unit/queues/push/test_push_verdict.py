"""The meaning of answers, and of Retry-After."""

import pytest

from conveyor.queues.push.push_verdict import (
    MAX_ERROR_CHARACTERS,
    Settlement,
    answer_verdict,
    failure_verdict,
    timeout_verdict,
)
from conveyor.queues.push.retry_after import MAX_RETRY_AFTER_MS, retry_after_ms

NOW_MS = 1_700_000_000_000
"""Tue, 14 Nov 2023 22:13:20 GMT"""


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_success_acknowledges(status: int) -> None:
    verdict = answer_verdict(status, [], NOW_MS)
    assert verdict.settlement is Settlement.ACK
    assert verdict.error is None


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 413, 422, 499])
def test_refusals_are_failed_deliveries_to_a_target_that_works(status: int) -> None:
    verdict = answer_verdict(status, ["7"], NOW_MS)
    assert verdict.settlement is Settlement.NACK
    assert (verdict.has_failed, verdict.is_overloaded, verdict.hold_ms) == (False, False, 0)
    assert str(status) in (verdict.error or "")


@pytest.mark.parametrize("status", [500, 502, 504, 599])
def test_errors_of_the_target_are_failed_deliveries_to_a_target_that_fails(status: int) -> None:
    verdict = answer_verdict(status, [], NOW_MS)
    assert verdict.settlement is Settlement.NACK
    assert verdict.has_failed
    assert verdict.is_overloaded


def test_gone_target_releases_and_pauses() -> None:
    verdict = answer_verdict(410, [], NOW_MS)
    assert (verdict.settlement, verdict.is_gone, verdict.has_failed) == (Settlement.RELEASE, True, False)


@pytest.mark.parametrize(
    ("status", "retry_after", "hold_ms", "has_failed"),
    [
        (429, [], 1_000, False),
        (429, ["0"], 1_000, False),
        (429, ["7"], 7_000, False),
        (503, [], 1_000, True),
        (503, ["7"], 7_000, True),
    ],
)
def test_overloaded_target_releases_and_waits(
    status: int, retry_after: list[str], hold_ms: int, has_failed: bool
) -> None:
    verdict = answer_verdict(status, retry_after, NOW_MS)
    assert (verdict.settlement, verdict.is_overloaded) == (Settlement.RELEASE, True)
    assert (verdict.hold_ms, verdict.has_failed) == (hold_ms, has_failed)


def test_lack_of_an_answer_counts_only_if_the_target_may_have_got_the_request() -> None:
    assert timeout_verdict(500).settlement is Settlement.NACK
    assert failure_verdict("cut", is_sent=True).settlement is Settlement.NACK
    assert failure_verdict("no connection", is_sent=False).settlement is Settlement.RELEASE
    assert all(each.has_failed for each in (timeout_verdict(500), failure_verdict("x", is_sent=False)))
    assert len(failure_verdict("x" * 1_000, is_sent=False).error or "") == MAX_ERROR_CHARACTERS


@pytest.mark.parametrize(
    ("values", "wait_ms"),
    [
        (["0"], 0),
        (["120"], 120_000),
        ([" 3 "], 3_000),
        (["Tue, 14 Nov 2023 22:13:50 GMT"], 30_000),
        (["Tuesday, 14-Nov-23 22:13:50 GMT"], 30_000),
        (["Tue, 14 Nov 2023 22:00:00 GMT"], 0),
        (["9999999999"], MAX_RETRY_AFTER_MS),
        (["Tue, 14 Nov 2034 22:00:00 GMT"], MAX_RETRY_AFTER_MS),
        (["3", "5", "soon"], 5_000),
        ([], None),
        (["soon"], None),
        (["-1"], None),
        (["1.5"], None),
        (["99999999999999999999"], None),
        (["1" * 1_000], None),
        (["\uff11"], None),
        (["Tue, 14 Nov 99999 22:00:00 GMT"], None),
        (["Tue, 14 Nov 2023 22:13:50 " + "x" * 60], None),
    ],
)
def test_retry_after_is_seconds_or_a_date_with_a_limit(values: list[str], wait_ms: int | None) -> None:
    assert retry_after_ms(values, NOW_MS) == wait_ms
