"""A transaction coordinator without a broker: a TransactionMachine, run as the runner runs it, on a list as its log."""

from typing import Any

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity, TopicPartition
from conveyor.kernel.state_machine import LogRecord, Outcome, Token
from conveyor.transactions.transaction_commands import (
    AddPartitions,
    AwaitMarkers,
    DescribeTransaction,
    EndTransaction,
    InitializeProducer,
    ListTransactions,
    MarkerAnswer,
    RecordMarkers,
    TransactionCommand,
    TransactionLimits,
)
from conveyor.transactions.transaction_log import decode_transaction, transaction_record
from conveyor.transactions.transaction_machine import TransactionMachine
from conveyor.transactions.transaction_replies import (
    MarkersToSend,
    ProducerInitialized,
    TransactionDescription,
    TransactionEnded,
    TransactionMarkers,
)
from conveyor.transactions.transaction_value import TransactionState, TransactionValue

ID = "orders"
TIMEOUT_MS = 60_000
P0, P1, P2 = (TopicPartition("topic", partition) for partition in range(3))


class TransactionCoordinator:
    """Stores replies by token, checks that no caller gets two, and has a sender that always waits for markers."""

    def __init__(self, **limits: Any) -> None:
        self.limits = TransactionLimits(**limits)
        self.now_ms = 1_700_000_000_000
        self.log: list[LogRecord] = []
        self.replies: dict[Token, object] = {}
        self.unanswered: list[TransactionMarkers] = []
        self._last_token = 0
        self._last_spare = 999
        self._epoch = 0
        self.fail_over()

    def fail_over(self) -> None:
        """Discard everything but the log, and load the next coordinator."""
        self._epoch += 1
        self.machine = TransactionMachine(self.limits, self._epoch)
        for record in self.log:
            self.machine.apply(record)
        self.machine.loaded(self.now_ms)
        self.unanswered = []
        self._await_markers(again=True)

    def submit(self, command: TransactionCommand[object]) -> Token:
        self._last_token += 1
        token = Token(self._last_token)
        self._carry_out(self.machine.handle(command, token, self.now_ms))
        return token

    def ask(self, command: TransactionCommand[object]) -> Any:
        """Submit a command that must be answered at once. Returns the reply."""
        return self.replies.pop(self.submit(command))

    def listed(self, **filters: Any) -> list[str]:
        """Return the transactional ids that match, in the order of their names."""
        names = tuple(sorted(self.machine.transactional_ids()))
        listed = self.ask(ListTransactions(transactional_ids=names, **filters))
        return [transaction.transactional_id for transaction in listed.transactions]

    def spare(self) -> ProducerId:
        self._last_spare += 1
        return ProducerId(self._last_spare)

    def try_init(self, **fields: Any) -> Any:
        values: dict[str, Any] = {"transactional_id": ID, "timeout_ms": TIMEOUT_MS, "spare_producer_id": self.spare()}
        return self.ask(InitializeProducer(**values | fields))

    def init(self, **fields: Any) -> ProducerIdentity:
        reply = self.try_init(**fields)
        assert isinstance(reply, ProducerInitialized), reply
        return reply.producer

    def add(self, producer: ProducerIdentity, *partitions: TopicPartition, version: int = 2, **fields: Any) -> Any:
        values: dict[str, Any] = {"transactional_id": ID, "producer": producer, "partitions": partitions or (P0,)}
        return self.ask(AddPartitions(transaction_version=version, **values | fields))

    def end(self, producer: ProducerIdentity, *, commit: bool = True, version: int = 2, **fields: Any) -> Any:
        values: dict[str, Any] = {
            "transactional_id": ID,
            "producer": producer,
            "commit": commit,
            "transaction_version": version,
        }
        return self.ask(EndTransaction(**values | fields))

    def ended(self, producer: ProducerIdentity, **fields: Any) -> ProducerIdentity:
        """End a transaction. Returns the identity for the next one."""
        reply = self.end(producer, **fields)
        assert isinstance(reply, TransactionEnded), reply
        return reply.producer

    def answer(self, markers: TransactionMarkers, answer: MarkerAnswer, *partitions: TopicPartition) -> None:
        """Answer markers of some partitions, or of all of them."""
        answers = tuple((partition, answer) for partition in partitions or markers.partitions)
        self.ask(RecordMarkers(transactional_id=markers.transactional_id, serial=markers.serial, answers=answers))

    def write_markers(self) -> list[TransactionMarkers]:
        """Let all partitions answer all markers. Returns the markers."""
        markers, self.unanswered = self.unanswered, []
        for one in markers:
            self.answer(one, MarkerAnswer.WRITTEN)
        return markers

    def describe(self) -> TransactionDescription:
        described = self.ask(DescribeTransaction(transactional_id=ID))
        assert isinstance(described, TransactionDescription), described
        return described

    def state(self) -> TransactionState:
        return self.describe().state

    def newest_value(self) -> TransactionValue:
        value = self.log[-1].value
        assert value is not None
        return decode_transaction(value)

    def advance(self, milliseconds: int) -> None:
        """Advance the time, and stop at each deadline."""
        end = self.now_ms + milliseconds
        while (deadline := self.machine.next_deadline_ms()) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.expire()
        self.now_ms = end

    def expire(self) -> None:
        """Let the machine decide once on the deadlines that have passed."""
        self._carry_out(self.machine.expire(self.now_ms))

    def set_clock(self, by_ms: int) -> None:
        """Set the wall clock, forward or back."""
        self.now_ms += by_ms
        self.machine.clock_set(by_ms)

    def with_epoch(self, epoch: int) -> ProducerIdentity:
        """Replace the log by a producer at this epoch, without a transaction."""
        identity = ProducerIdentity(self.spare(), ProducerEpoch(epoch))
        value = TransactionValue(
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            timeout_ms=TIMEOUT_MS,
            state=TransactionState.EMPTY,
            last_update_ms=self.now_ms,
        )
        self.log = [transaction_record(ID, value)]
        self.fail_over()
        return identity

    def _await_markers(self, *, again: bool = False) -> None:
        self._sender = self.submit(AwaitMarkers(again=again))

    def _carry_out(self, outcome: Outcome) -> None:
        for record in outcome.records:
            self.log.append(LogRecord(record.key, record.value, self.now_ms))
            self.machine.apply(self.log[-1])
        sent = False
        for reply in outcome.replies:
            assert reply.token not in self.replies, "a caller was answered twice"
            if isinstance(reply.value, MarkersToSend):
                self.unanswered += reply.value.markers
                sent = True
            else:
                self.replies[reply.token] = reply.value
        if sent:
            self._await_markers()


def kind_of(reply: object) -> ErrorKind:
    """Return the kind of a refusal."""
    assert isinstance(reply, RequestError), f"not a refusal: {reply}"
    return reply.kind


def after(producer: ProducerIdentity, count: int = 1) -> ProducerIdentity:
    """Return the identity with an epoch that is higher by `count`."""
    return ProducerIdentity(producer.producer_id, ProducerEpoch(producer.producer_epoch + count))
