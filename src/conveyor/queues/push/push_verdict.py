"""The meaning of a target's answer, or of its lack: for the messages, for the target, and for the requests after it.

    answer                    messages                           target
    2xx                       acknowledged                       works
    410                       released                           works; the push is paused
    429                       released                           overloaded: waits for Retry-After, at least a second
    503                       released                           overloaded, fails: waits as after 429
    other 5xx, no answer      nacked, with the policy's backoff  overloaded, fails: waits for Retry-After
    no connection in time     released                           fails
    other, redirects too      nacked, with the policy's backoff  works

A released message counts as never delivered: no message causes what has happened, so none becomes a dead letter by it.
Source: Standard Webhooks, RFC 9110.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from conveyor.queues.push.retry_after import retry_after_ms

MAX_ERROR_CHARACTERS = 200
_LEAST_HOLD_MS = 1_000
_GONE, _TOO_MANY, _UNAVAILABLE = 410, 429, 503


class Settlement(Enum):
    """What becomes of the messages of a request."""

    ACK = auto()
    NACK = auto()
    RELEASE = auto()


class Verdict(NamedTuple):
    """See the module's docstring. hold_ms: the pause before the next request; 0 for none. error: what an operator is
    shown; None after a success.
    """

    settlement: Settlement
    has_failed: bool = False
    is_overloaded: bool = False
    is_gone: bool = False
    hold_ms: int = 0
    error: str | None = None


def answer_verdict(status: int, retry_after: Sequence[str], now_ms: int) -> Verdict:
    """Return what an answer means. retry_after: the values of its Retry-After headers. now_ms: wall-clock time."""
    if 200 <= status < 300:
        return Verdict(Settlement.ACK)
    error = f"the target answers {status}"
    if status == _GONE:
        return Verdict(Settlement.RELEASE, is_gone=True, error=f"{error}: it is gone, and the push is paused")
    if status in (_TOO_MANY, _UNAVAILABLE):
        has_failed = status == _UNAVAILABLE
        hold_ms = max(_LEAST_HOLD_MS, retry_after_ms(retry_after, now_ms) or 0)
        return Verdict(Settlement.RELEASE, has_failed, is_overloaded=True, hold_ms=hold_ms, error=error)
    if status >= 500:
        hold_ms = retry_after_ms(retry_after, now_ms) or 0
        return Verdict(Settlement.NACK, has_failed=True, is_overloaded=True, hold_ms=hold_ms, error=error)
    if 300 <= status < 400:
        error = f"{error}: redirects are not followed"
    return Verdict(Settlement.NACK, error=error)


def timeout_verdict(timeout_ms: int) -> Verdict:
    """Return what it means that a target has not answered in time."""
    error = f"the target does not answer within {timeout_ms} ms"
    return Verdict(Settlement.NACK, has_failed=True, is_overloaded=True, error=error)


def failure_verdict(reason: str, *, is_sent: bool) -> Verdict:
    """Return what a failed request means. is_sent: the target may have got it; otherwise there was no connection."""
    settlement = Settlement.NACK if is_sent else Settlement.RELEASE
    return Verdict(settlement, has_failed=True, is_overloaded=is_sent, error=reason[:MAX_ERROR_CHARACTERS])
