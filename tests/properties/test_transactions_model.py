"""A transactional id under random clients, time and failovers: each transaction has one outcome, everywhere.

The model has two partitions' logs: which batches are open, which were committed or aborted. A client stops when it is
fenced, and repeats requests whose replies were lost. `PROPERTY_EXAMPLES` sets how many histories are tried.
"""

import os
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import ProducerIdentity, TopicPartition
from conveyor.transactions.transaction_commands import MarkerAnswer
from conveyor.transactions.transaction_replies import (
    PartitionsAdded,
    ProducerInitialized,
    TransactionEnded,
    TransactionMarkers,
)
from conveyor.transactions.transaction_value import TransactionState
from tests.unit.transactions.transaction_coordinator import P0, P1, TIMEOUT_MS, TransactionCoordinator, kind_of

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "200"))
FENCED = {ErrorKind.PRODUCER_FENCED, ErrorKind.INVALID_PRODUCER_ID_MAPPING}
CLIENTS = 2
PLACES = (P0, P1)
number = st.integers(0, CLIENTS - 1)
loss = st.sampled_from([False, False, False, True])


@dataclass(slots=True)
class Client:
    """A producer as it sees itself.

    transaction: its open transaction, a number; written: the partitions that it has written to. ending: the outcome
    that it asked for and has no reply for. recovering: the identity that it wants to raise (KIP-360).
    """

    version: int
    producer: ProducerIdentity | None = None
    transaction: int | None = None
    written: set[TopicPartition] = field(default_factory=set)
    ending: bool | None = None
    recovering: bool = False

    def stop(self) -> None:
        self.producer, self.transaction, self.ending, self.recovering = None, None, None, False
        self.written = set()


class Participant:
    """One partition's log. A marker ends the open batches of its producer id below or at its epoch."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[ProducerIdentity, set[int]]] = {}
        self.epochs: dict[int, int] = {}
        self.outcomes: dict[int, bool] = {}

    def append(self, producer: ProducerIdentity, transaction: int) -> bool:
        producer_id, epoch = producer
        if epoch < self.epochs.get(producer_id, -1):
            return False
        before = self.open.get(producer_id)
        assert before is None or before[0] == producer, "a transaction begins before the marker of the one before"
        self.epochs[producer_id] = epoch
        self.open.setdefault(producer_id, (producer, set()))[1].add(transaction)
        return True

    def mark(self, markers: TransactionMarkers) -> None:
        producer_id, epoch = markers.producer
        is_newer = epoch > self.epochs.get(producer_id, -1)
        if is_newer or (markers.transaction_version < 2 and epoch == self.epochs.get(producer_id)):
            self.epochs[producer_id] = epoch
            for transaction in self.open.pop(producer_id, (None, set[int]()))[1]:
                self.outcomes[transaction] = markers.commit


class TransactionModel(RuleBasedStateMachine):
    """The model: the outcomes that clients were promised, and those that partitions have."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = TransactionCoordinator(two_phase_commit_enable=True)
        self.clients: list[Client] = []
        self.participants = {place: Participant() for place in PLACES}
        self.promised: dict[int, bool] = {}
        self.abandoned: set[int] = set()
        self.writes: dict[int, set[TopicPartition]] = {}
        self.holder: int | None = None
        self.may_be_fenced = False
        self.recorded: set[tuple[int, TopicPartition]] = set()
        self.late_answers: list[tuple[TransactionMarkers, TopicPartition]] = []
        self.count = 0

    @initialize(
        versions=st.lists(st.sampled_from([1, 2]), min_size=CLIENTS, max_size=CLIENTS), epoch=st.integers(-1, 4)
    )
    def start(self, versions: list[int], epoch: int) -> None:
        self.clients = [Client(version) for version in versions]
        if epoch >= 0:
            self.coordinator.with_epoch(32762 + epoch)

    @rule(number=number, is_reply_lost=loss)
    def initialize_producer(self, number: int, is_reply_lost: bool) -> None:
        """A client starts, or raises its epoch after a failure. The transaction before it is aborted."""
        client = self.clients[number]
        expected = client.producer if client.recovering else None
        reply = self.coordinator.try_init(expected=expected)
        if isinstance(reply, ProducerInitialized):
            self.holder = number if expected is None else self.holder
            self.may_be_fenced = False
        elif expected is None:
            self.may_be_fenced = True
        if is_reply_lost and client.recovering:
            return
        if isinstance(reply, ProducerInitialized):
            assert expected is None or self.holder == number, "a zombie got a new epoch"
            client.stop()
            client.producer = None if is_reply_lost else reply.producer
        elif kind_of(reply) in FENCED:
            self.fenced(number)
        else:
            assert kind_of(reply) is ErrorKind.CONCURRENT_TRANSACTIONS
            if expected is None:
                client.stop()

    @rule(number=number, place=st.sampled_from(PLACES), is_reply_lost=loss)
    def produce(self, number: int, place: TopicPartition, is_reply_lost: bool) -> None:
        client = self.clients[number]
        if client.producer is None or client.ending is not None or client.recovering:
            return
        reply = self.coordinator.add(client.producer, place, version=client.version)
        if is_reply_lost:
            return
        if isinstance(reply, PartitionsAdded):
            self.append(number, client, client.producer, place)
        elif kind_of(reply) in FENCED:
            self.fenced(number)
        else:
            assert kind_of(reply) is ErrorKind.CONCURRENT_TRANSACTIONS

    def append(self, number: int, client: Client, producer: ProducerIdentity, place: TopicPartition) -> None:
        assert self.holder == number, "two clients write"
        if client.transaction is None:
            self.count += 1
            client.transaction = self.count
        assert self.participants[place].append(producer, client.transaction), "a live producer is fenced in a partition"
        client.written.add(place)
        self.writes.setdefault(client.transaction, set()).add(place)

    @rule(number=number, commit=st.booleans(), is_reply_lost=loss)
    def end(self, number: int, commit: bool, is_reply_lost: bool) -> None:
        """An end whose reply was lost is repeated with the same outcome."""
        client = self.clients[number]
        if client.producer is None or client.recovering or (client.transaction is None and client.ending is None):
            return
        commit = client.ending if client.ending is not None else commit
        spare = self.coordinator.spare()
        reply = self.coordinator.end(client.producer, commit=commit, version=client.version, spare_producer_id=spare)
        if is_reply_lost:
            client.ending = commit
            return
        if isinstance(reply, TransactionEnded):
            if client.transaction is not None:
                self.promised[client.transaction] = commit
            client.stop()
            client.producer = reply.producer
        elif kind_of(reply) in FENCED:
            self.fenced(number)
        else:
            assert kind_of(reply) is ErrorKind.CONCURRENT_TRANSACTIONS
            client.ending = commit

    @rule(number=number, commit=st.booleans(), is_reply_lost=loss)
    def run_transaction(self, number: int, commit: bool, is_reply_lost: bool) -> None:
        """A client begins, writes to all partitions, and asks for the end."""
        if self.clients[number].producer is None:
            self.initialize_producer(number=number, is_reply_lost=False)
        for place in PLACES:
            self.produce(number=number, place=place, is_reply_lost=False)
        self.end(number=number, commit=commit, is_reply_lost=is_reply_lost)

    @rule(number=number)
    def raise_epoch(self, number: int) -> None:
        """A client has an error that it recovers from with a higher epoch; its transaction must be aborted."""
        client = self.clients[number]
        if client.producer is not None and client.ending is None:
            client.recovering = True
            if client.transaction is not None:
                self.abandoned.add(client.transaction)

    @rule(number=number, commit=st.booleans())
    def zombie_ends(self, number: int, commit: bool) -> None:
        """A client that lost the transactional id asks for an end with its old identity: see `fenced`."""
        client = self.clients[number]
        if client.producer is not None and self.holder != number:
            before = self.coordinator.describe()
            reply = self.coordinator.end(client.producer, commit=commit, version=client.version)
            if self.holder is not None:
                assert not isinstance(reply, TransactionEnded), "a zombie ended a transaction"
                assert self.coordinator.describe() == before

    @rule(milliseconds=st.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS]))
    def time_passes(self, milliseconds: int) -> None:
        before = self.coordinator.state() if self.coordinator.log else None
        self.coordinator.advance(milliseconds)
        if before is TransactionState.ONGOING and self.coordinator.state() is not TransactionState.ONGOING:
            self.may_be_fenced = True

    @rule(by_ms=st.sampled_from([-TIMEOUT_MS, TIMEOUT_MS]))
    def clock_is_set(self, by_ms: int) -> None:
        self.coordinator.set_clock(by_ms)

    @rule()
    def fail_over(self) -> None:
        self.coordinator.fail_over()
        self.recorded, self.late_answers = set(), []

    @precondition(lambda self: self.coordinator.unanswered)
    @rule(place=st.sampled_from(PLACES), is_reply_lost=loss)
    def write_marker(self, place: TopicPartition, is_reply_lost: bool) -> None:
        for markers in self.coordinator.unanswered:
            if place in markers.partitions and (markers.serial, place) not in self.recorded:
                self.participants[place].mark(markers)
                if not is_reply_lost:
                    self.recorded.add((markers.serial, place))
                    self.late_answers.append((markers, place))
                    self.coordinator.answer(markers, MarkerAnswer.WRITTEN, place)

    @precondition(lambda self: self.late_answers)
    @rule(data=st.data())
    def answer_comes_twice(self, data: st.DataObject) -> None:
        markers, place = data.draw(st.sampled_from(self.late_answers))
        self.coordinator.answer(markers, MarkerAnswer.WRITTEN, place)

    @rule()
    def write_all_markers(self) -> None:
        for place in PLACES:
            self.write_marker(place=place, is_reply_lost=False)
        self.coordinator.unanswered.clear()

    def fenced(self, number: int) -> None:
        client = self.clients[number]
        assert self.holder != number or self.may_be_fenced, "a live producer is fenced"
        if client.transaction is not None and client.ending is None:
            self.abandoned.add(client.transaction)
        client.stop()

    @invariant()
    def every_transaction_has_one_outcome(self) -> None:
        for transaction, places in self.writes.items():
            outcomes = {
                participant.outcomes[transaction]
                for place, participant in self.participants.items()
                if place in places and transaction in participant.outcomes
            }
            assert len(outcomes) < 2, "torn"
            if transaction in self.promised:
                assert outcomes <= {self.promised[transaction]}, "not the outcome that the client was told"
            if transaction in self.abandoned:
                assert outcomes <= {False}, "committed without a request"

    def teardown(self) -> None:
        """Every transaction ends, by its client or by its timeout."""
        for _ in range(3):
            self.coordinator.advance(TIMEOUT_MS)
            self.write_all_markers()
        assert not self.coordinator.unanswered
        for participant in self.participants.values():
            assert not participant.open, "a transaction hangs"
        self.every_transaction_has_one_outcome()


def test_transactions_of_one_id_against_a_model() -> None:
    run_state_machine_as_test(
        TransactionModel, settings=settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
    )
