"""Requests with ids under random repeats, crashes, time and failovers: each id commits once while its answer is kept.

The model has the runs of requests, each in a transaction of a pooled producer, and two partitions' logs. Any number of
runs of one id overlap, also those of a coordinator that was replaced. `PROPERTY_EXAMPLES` sets how many histories are
tried.
"""

import os
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import ProducerIdentity, TopicPartition
from conveyor.transactions.request_answers import AnsweredBefore
from conveyor.transactions.stored_answer import AnswerKey, NewAnswer, StoredAnswer
from conveyor.transactions.transaction_commands import FindAnswer, MarkerAnswer
from conveyor.transactions.transaction_replies import (
    AnswerFound,
    PartitionsAdded,
    ProducerInitialized,
    TransactionEnded,
)
from tests.properties.test_transactions_model import Participant
from tests.unit.transactions.transaction_coordinator import P0, P1, TIMEOUT_MS, TransactionCoordinator, kind_of

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "200"))
RETENTION_MS = 3 * TIMEOUT_MS
PLACES = (P0, P1)
ENDED = {
    ErrorKind.PRODUCER_FENCED,
    ErrorKind.INVALID_PRODUCER_ID_MAPPING,
    ErrorKind.INVALID_TXN_STATE,
    ErrorKind.CONCURRENT_TRANSACTIONS,
}
request_ids = st.sampled_from(["a", "b"])
bodies = st.sampled_from([b"body", b"body", b"other body"])
producers = st.sampled_from(["pool-1", "pool-2", "pool-3"])
any_run = st.integers(0, 1 << 16)
loss = st.sampled_from([False, False, False, True])


@dataclass(slots=True)
class Run:
    """One run of a request."""

    number: int
    request_id: str
    body: bytes
    transactional_id: str
    producer: ProducerIdentity


@dataclass(slots=True)
class Commit:
    """A run that has committed. content: of its answer."""

    run: Run
    at_ms: int

    @property
    def content(self) -> bytes:
        return b"%d" % self.run.number


class RequestModel(RuleBasedStateMachine):
    """The model: which runs have committed, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = TransactionCoordinator(answer_retention_ms=RETENTION_MS)
        self.participants = {place: Participant() for place in PLACES}
        self.runs: list[Run] = []
        self.commits: dict[str, Commit] = {}
        self.committed: set[int] = set()
        self.count = 0

    def kept(self, request_id: str) -> Commit | None:
        """Return the commit whose answer is kept for an id."""
        commit = self.commits.get(request_id)
        is_kept = commit is not None and self.coordinator.now_ms < commit.at_ms + RETENTION_MS
        return commit if is_kept else None

    @rule(request_id=request_ids, body=bodies, transactional_id=producers)
    def begin(self, request_id: str, body: bytes, transactional_id: str) -> None:
        """A client sends a request for the first time, or again. Only the first one with an answer is not run."""
        reply = self.coordinator.ask(FindAnswer(key=AnswerKey(request_id), digest=body))
        assert isinstance(reply, AnswerFound), reply
        if reply.answer is not None:
            return self.check_answer(request_id, reply.answer)
        assert self.kept(request_id) is None, "an answer was forgotten"
        initialized = self.coordinator.try_init(transactional_id=transactional_id)
        if not isinstance(initialized, ProducerInitialized):
            assert kind_of(initialized) is ErrorKind.CONCURRENT_TRANSACTIONS
            return
        self.count += 1
        self.runs.append(Run(self.count, request_id, body, transactional_id, initialized.producer))

    def check_answer(self, request_id: str, answer: StoredAnswer) -> None:
        commit = self.kept(request_id)
        assert commit is not None, "an answer to a request that has not committed, or that was kept for too long"
        assert (answer.content, answer.digest) == (commit.content, commit.run.body)

    @rule(number=any_run, place=st.sampled_from(PLACES))
    def publish(self, number: int, place: TopicPartition) -> None:
        if not self.runs:
            return
        run = self.runs[number % len(self.runs)]
        reply = self.coordinator.add(run.producer, place, transactional_id=run.transactional_id)
        if isinstance(reply, PartitionsAdded):
            assert self.participants[place].append(run.producer, run.number)
        else:
            assert kind_of(reply) in ENDED

    @rule(number=any_run, is_reply_lost=loss)
    def commit(self, number: int, is_reply_lost: bool) -> None:
        """A run asks for its commit. If the reply is lost, it may ask again."""
        if not self.runs:
            return
        run = self.runs[number % len(self.runs)]
        answer = NewAnswer(key=AnswerKey(run.request_id), digest=run.body, content=b"%d" % run.number)
        reply = self.coordinator.end(run.producer, transactional_id=run.transactional_id, answer=answer)
        if isinstance(reply, TransactionEnded):
            if run.number not in self.committed:
                assert self.kept(run.request_id) is None, "two runs of a request have committed"
                self.committed.add(run.number)
                self.commits[run.request_id] = Commit(run, self.coordinator.now_ms)
        elif isinstance(reply, AnsweredBefore):
            self.check_answer(run.request_id, reply.answer)
        else:
            assert kind_of(reply) in ENDED
        if not is_reply_lost:
            self.runs.remove(run)

    @rule(number=any_run)
    def abort(self, number: int) -> None:
        if self.runs:
            run = self.runs.pop(number % len(self.runs))
            reply = self.coordinator.end(run.producer, commit=False, transactional_id=run.transactional_id)
            assert isinstance(reply, TransactionEnded) or kind_of(reply) in ENDED

    @rule(number=any_run)
    def crash(self, number: int) -> None:
        """A run ends without an end of its transaction."""
        if self.runs:
            del self.runs[number % len(self.runs)]

    @rule(request_id=request_ids, body=bodies, transactional_id=producers, is_reply_lost=loss)
    def run(self, request_id: str, body: bytes, transactional_id: str, is_reply_lost: bool) -> None:
        """A request from its beginning to its end."""
        before = len(self.runs)
        self.begin(request_id=request_id, body=body, transactional_id=transactional_id)
        if len(self.runs) > before:
            for place in PLACES:
                self.publish(number=before, place=place)
            self.commit(number=before, is_reply_lost=is_reply_lost)

    @rule(request_id=request_ids, transactional_ids=st.permutations(["pool-1", "pool-2"]), is_reply_lost=loss)
    def run_twice(self, request_id: str, transactional_ids: list[str], is_reply_lost: bool) -> None:
        """Two runs of a request overlap."""
        before = len(self.runs)
        for transactional_id in transactional_ids:
            self.begin(request_id=request_id, body=b"body", transactional_id=transactional_id)
        for number in range(before, len(self.runs)):
            self.publish(number=number, place=PLACES[0])
        for number in reversed(range(before, len(self.runs))):
            self.commit(number=number, is_reply_lost=is_reply_lost)

    @rule(milliseconds=st.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS, RETENTION_MS - 1]))
    def time_passes(self, milliseconds: int) -> None:
        self.coordinator.advance(milliseconds)

    @rule()
    def fail_over(self) -> None:
        """Runs of the coordinator before may go on."""
        self.coordinator.fail_over()

    @rule(is_reply_lost=loss)
    def write_markers(self, is_reply_lost: bool) -> None:
        for markers in self.coordinator.unanswered:
            for place in markers.partitions:
                self.participants[place].mark(markers)
                if not is_reply_lost:
                    self.coordinator.answer(markers, MarkerAnswer.WRITTEN, place)
        if not is_reply_lost:
            self.coordinator.unanswered.clear()

    @invariant()
    def partitions_have_what_was_committed(self) -> None:
        for participant in self.participants.values():
            for number, commit in participant.outcomes.items():
                assert commit == (number in self.committed), "another outcome than the coordinator has decided"

    @invariant()
    def memory_is_counted(self) -> None:
        answers = self.coordinator.machine.answers
        assert (answers.size_bytes > 0) == (len(answers) > 0)

    def teardown(self) -> None:
        """All transactions end, and all answers expire."""
        for _ in range(3):
            self.coordinator.advance(RETENTION_MS)
            self.write_markers(is_reply_lost=False)
        assert len(self.coordinator.machine.answers) == 0
        for participant in self.participants.values():
            assert not participant.open, "a transaction hangs"
        self.partitions_have_what_was_committed()


def test_requests_with_ids_against_a_model() -> None:
    run_state_machine_as_test(
        RequestModel, settings=settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
    )
