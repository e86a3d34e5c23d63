"""The answers to requests that ran in transactions, by the ids of the requests: a repeated request gets the answer of
the first one. Each user has ids of its own, so none learns of, or takes, an id of another user.

    commit with an answer -> kept -> (retention) -> tombstone

The coordinator appends an answer in one batch with the commit of its transaction, and only if the id has no answer: two
runs of one request cannot both commit. Hard state, changed by `apply` only: the answers. Soft state: their deadlines.
The retention is a duration, so its end moves with the wall clock.

The memory for answers is bounded. While there is no room, new ids are refused: a request whose answer is forgotten too
early could run twice.
"""

from collections.abc import Iterator

from conveyor.kernel.deadlines import Deadlines
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import LogRecord
from conveyor.transactions.stored_answer import AnswerKey, NewAnswer, StoredAnswer, answer_record

LONGEST_ID_BYTES = 1_000
LONGEST_CONTENT_BYTES = 500_000
"""So that an answer and the outcome of its transaction fit into one batch."""

_OVERHEAD_BYTES = 300
"""The memory for an answer besides its id and its content."""


class AnsweredBefore(RequestError):  # noqa: N818 - named for what it is
    """Another run of the same request has committed."""

    def __init__(self, answer: StoredAnswer) -> None:
        super().__init__(ErrorKind.CONCURRENT_TRANSACTIONS, "the request has committed already: repeat it")
        self.answer = answer


class RequestAnswers:
    def __init__(self, retention_ms: int, max_bytes: int) -> None:
        self._retention_ms = retention_ms
        self._max_bytes = max_bytes
        self._answers: dict[AnswerKey, StoredAnswer] = {}
        self._ends: dict[AnswerKey, int] = {}
        self._deadlines: Deadlines[AnswerKey] = Deadlines()
        self.size_bytes = 0
        """The memory for all answers."""

    def __len__(self) -> int:
        return len(self._answers)

    def __contains__(self, key: AnswerKey) -> bool:
        return key in self._answers

    def find(self, key: AnswerKey, digest: bytes) -> StoredAnswer | None:
        """Return the answer to a request. One without an owner is also that of a user's request with the same digest:
        an earlier version may have kept it.
        """
        answer = self._answers.get(key)
        if answer is None and key.owner:
            unowned = self._answers.get(AnswerKey(key.request_id))
            answer = unowned if unowned is not None and unowned.digest == digest else None
        return answer

    def check_new(self, key: AnswerKey, content_bytes: int = 0) -> None:
        """Check that an answer to this request can be kept.

        Raises AnsweredBefore; RequestError: THROTTLING_QUOTA_EXCEEDED while there is no room, INVALID_REQUEST.
        """
        if (answer := self._answers.get(key)) is not None:
            raise AnsweredBefore(answer)
        if not 0 < len(key.request_id.encode()) <= LONGEST_ID_BYTES:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"the id of a request has 1 to {LONGEST_ID_BYTES} bytes")
        if content_bytes > LONGEST_CONTENT_BYTES:
            reason = f"the answer has {content_bytes} bytes, at most {LONGEST_CONTENT_BYTES} can be kept: send less"
            raise RequestError(ErrorKind.POLICY_VIOLATION, reason)
        if self.size_bytes + _key_bytes(key) + content_bytes + _OVERHEAD_BYTES > self._max_bytes:
            raise RequestError(
                ErrorKind.THROTTLING_QUOTA_EXCEEDED,
                f"the answers to {len(self._answers)} requests are kept for repeated ids, and there is no room for"
                f" another one: repeat the request later; an answer is kept for {self._retention_ms} ms"
                " (transactions.answer_retention_ms)",
            )

    def keep(self, answer: NewAnswer, now_ms: int) -> LogRecord:
        """Return the record of an answer. Raises RequestError: see `check_new`."""
        self.check_new(answer.key, len(answer.content))
        stored = StoredAnswer(digest=answer.digest, content=answer.content, answered_ms=now_ms)
        return answer_record(answer.key, stored)

    def apply(self, key: AnswerKey, answer: StoredAnswer | None, *, is_loaded: bool) -> None:
        before = self._answers.pop(key, None)
        self._ends.pop(key, None)
        if before is not None:
            self.size_bytes -= _size_bytes(key, before)
        if answer is None:
            return
        self._answers[key] = answer
        self.size_bytes += _size_bytes(key, answer)
        if is_loaded:
            self._set_end(key, answer.answered_ms + self._retention_ms)

    def loaded(self, now_ms: int) -> None:
        """Set the deadlines after a replay. No answer is kept for longer than its whole retention from now on."""
        for key, answer in self._answers.items():
            self._set_end(key, min(answer.answered_ms, now_ms) + self._retention_ms)

    def clock_set(self, by_ms: int) -> None:
        """See `StateMachine.clock_set`."""
        ends, self._deadlines = self._ends, Deadlines()
        for key, end_ms in list(ends.items()):
            self._set_end(key, end_ms + by_ms)

    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms()

    def expire(self, now_ms: int) -> Iterator[LogRecord]:
        """Yield the tombstones of answers whose retention has passed. The caller appends all that it has taken."""
        for key in self._deadlines.pop_due(now_ms):
            yield answer_record(key, None)

    def _set_end(self, key: AnswerKey, end_ms: int) -> None:
        self._ends[key] = end_ms
        self._deadlines.put(key, end_ms)


def _size_bytes(key: AnswerKey, answer: StoredAnswer) -> int:
    return _key_bytes(key) + len(answer.content) + _OVERHEAD_BYTES


def _key_bytes(key: AnswerKey) -> int:
    return len(key.request_id.encode()) + len(key.owner.encode())
