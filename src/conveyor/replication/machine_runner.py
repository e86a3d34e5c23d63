"""Runs one state machine on one partition: appends its records, applies them, and sends replies once they are durable.

    submit -> (leader, enough replicas) -> handle -> append records -> apply -> (high watermark) -> replies

`replay` loads the machine from the partition's start. Before each command the runner checks that the partition accepts
appends, because a machine whose records the log refuses no longer matches the log. If the log refuses the records
nevertheless (a failing disk, or a `max.message.bytes` that was set too low), the partition and its machine go offline:
every caller receives COORDINATOR_NOT_AVAILABLE until the log is reopened and another runner replays it. A broker that
no longer leads the partition replies NOT_LEADER.

A machine whose state speaks of the offsets of another log states of which records that is true; see `stated_epochs`.

If the records cannot be committed, because the ISR has become too small or in-sync replicas do not answer, the callers
do not wait: see `commit_deadline`. The decision stands and is committed with the next records. Meanwhile no further
command is accepted, whether it writes records or not.

The next leader may have a decision whose reply waits when this broker stops leading, or its disk fails. If its command
is not repeatable, the reply is REQUEST_TIMED_OUT, so that nobody asks the next leader.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar

from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import (
    ConveyorError,
    DiskFull,
    ErrorKind,
    RequestError,
    StorageFailure,
)
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.kernel.ports import Clock
from conveyor.kernel.state_change import StateChange
from conveyor.kernel.state_machine import Asked, LogRecord, Outcome, Reply, StateMachine, Token
from conveyor.log.batch_reading import batches_between
from conveyor.log.leader_epochs import NO_EPOCH
from conveyor.log.log import Log
from conveyor.records.batch import CONTROL, TRANSACTIONAL, BatchHeader, is_transactional
from conveyor.records.checked_batch import check_size, own_batch
from conveyor.records.record import Header, decode_records, encode_batch
from conveyor.records.transaction_marker import TransactionMarker, decode_marker, is_marker
from conveyor.replication.partition import Partition
from conveyor.replication.stated_epochs import Entries, epochs_header, read_epochs
from conveyor.replication.transactions import append_marker

Answer = TypeVar("Answer")
Respond = Callable[[Answer | RequestError], None]
"""Accepts a reply of the command's reply type, or a RequestError."""

Withdraw = Callable[[], object]
"""Drops the reply for a caller that no longer waits."""

_RETRY_MS = 1_000
_NOTHING_STATED = (NO_EPOCH, NO_EPOCH)
_ASKED_AGAIN = (ErrorKind.NOT_LEADER, ErrorKind.COORDINATOR_NOT_AVAILABLE)
"""After these the next leader is asked, by a broker or by the client."""
_DISK_FAILURES = (ErrorKind.PARTITION_OFFLINE, ErrorKind.DISK_FULL)
"""Failures of this broker's disk. Clients of a coordinator ask again after COORDINATOR_NOT_AVAILABLE only."""


class MachineRunner(Generic[Asked]):
    """See the module's docstring.

    needs_replicas: whether `min.insync.replicas` applies to the machine's records; if not, its callers wait without
    limit. described: the log whose offsets the machine's records speak of, if there is one. holds_lease: whether this
    broker certainly still leads what the newest image says; otherwise another broker may lead already, and replies that
    no record vouches for are withheld.
    """

    def __init__(
        self,
        partition: Partition,
        machine: StateMachine[Asked],
        clock: Clock,
        *,
        needs_replicas: bool = True,
        described: Log | None = None,
        holds_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        self.is_stopped = False
        self.partition = partition
        self._machine = machine
        self._clock = clock
        self._needs_replicas = needs_replicas
        self._described = described
        self._stated = _NOTHING_STATED
        self._holds_lease = holds_lease
        self._tokens = count(1)
        self._waiting: dict[Token, Respond[Any]] = {}
        self._alarm = Alarm(clock, self._deadline_passed)
        self._unfollow_clock = clock.when_set(self._clock_set)
        self._set_alarm()

    def submit(self, command: Asked, respond: Respond[Any]) -> Withdraw:
        """Submit a command to the machine. `respond` is called once, now or later; not after the caller withdraws."""
        token = Token(next(self._tokens))
        refusal = self.refusal()
        if refusal is not None:
            respond(refusal)
        else:
            with StateChange(self.partition.identity, type(command).__name__, expected=ConveyorError):
                outcome = self._machine.handle(command, token, self._clock.now_ms())
                self._waiting[token] = respond if command.is_repeatable else partial(_respond_decided, respond)
                self._carry_out(outcome)
        return partial(self._forget, token)

    def _forget(self, token: Token) -> None:
        self._waiting.pop(token, None)

    def wake(self) -> None:
        """Let the machine decide again, because a condition outside the log has changed."""
        self._set_alarm()

    def expire(self) -> None:
        """Let the machine decide on the deadlines that have passed."""
        refusal = self.refusal()
        if refusal is None:
            self._carry_out(self._machine.expire(self._clock.now_ms()))
        elif not self.is_stopped and self.partition.offline.reason is None and self.partition.leader_term is not None:
            self._alarm.after(_RETRY_MS)  # Also while this broker cannot be sure that it still leads.

    def append_applied(self, records: Sequence[LogRecord]) -> int | None:
        """Append records whose effect the machine has already, as one batch: a snapshot of its state, or what it has
        forgotten because the described log has changed. Returns the offset of the first.

        Returns None if they cannot be appended; the partition is then offline.
        """
        self._stated = _NOTHING_STATED
        offset = self.partition.log.log_end_offset
        return offset if self._append_batch(records, self._clock.now_ms()) else None

    def resolve_by_marker(self, marker: TransactionMarker, transaction_version: int) -> None:
        """Append the marker that ends a producer's transaction, and resolve the transaction, unless that was done
        before. See `transactions.append_marker`. Raises RequestError.
        """
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        now_ms = self._clock.now_ms()
        if append_marker(self.partition, marker, transaction_version, now_ms) is None:
            return
        with StateChange(self.partition.identity, marker):
            self._machine.resolve(_producer_of(marker), marker.commits, now_ms)
        self.wake()
        self._stepped()

    def stop(self) -> None:
        """Reply to all waiting callers, accept no more commands, and set no more alarms."""
        self.is_stopped = True
        self._unfollow_clock()
        self._alarm.cancel()
        self._fail_all()

    def _deadline_passed(self) -> None:
        """Called when the machine's next deadline has passed. A subclass may let it decide later."""
        self.expire()

    def _stepped(self) -> None:
        """Called after each decision, when its records are applied, and after each end of a transaction."""

    def _carry_out(self, outcome: Outcome) -> None:
        if outcome.records and not self._append(outcome.records, outcome.producer):
            return self._fail_all()
        if outcome.at_once:
            self._reply(outcome.replies, None if self._holds_lease() else coordinator_uncertain(self.partition))
        elif outcome.replies:
            self._reply_when_safe(outcome.replies)
        self._set_alarm()
        self._stepped()

    def _append(self, records: tuple[LogRecord, ...], producer: ProducerIdentity | None) -> bool:
        now_ms = self._clock.now_ms()
        if not self._append_batch(records, now_ms, producer):
            return False
        for record in records:
            self._machine.apply(LogRecord(record.key, record.value, now_ms, producer))
        return True

    def _append_batch(
        self, records: Sequence[LogRecord], now_ms: int, producer: ProducerIdentity | None = None
    ) -> bool:
        epochs, headers = self._epochs_to_state()
        contents = [
            (now_ms, record.key, record.value, () if index else headers) for index, record in enumerate(records)
        ]
        if producer is None:
            encoded = encode_batch(contents)
        else:
            encoded = encode_batch(contents, attributes=TRANSACTIONAL, **producer._asdict())
        partition, batch = self.partition, own_batch(encoded)
        try:
            check_size(batch, partition.log.topic.max_message_bytes)
            partition.append(batch, now_ms)
        except RequestError as error:
            if error.kind is not ErrorKind.NOT_LEADER:
                kind = DiskFull if error.kind is ErrorKind.DISK_FULL else StorageFailure
                partition.go_offline(kind(f"the decision could not be written: {error}"))
            return False
        self._stated = epochs
        return True

    def _epochs_to_state(self) -> tuple[tuple[int, int], tuple[Header, ...]]:
        """Return the leader epochs of the state and of the described log, and the header that is due in new epochs."""
        described = self._described
        if described is None:
            return _NOTHING_STATED, ()
        epochs = self.partition.term.epoch, described.leader_epochs.latest
        return epochs, () if epochs == self._stated else (epochs_header(described.leader_epochs),)

    def _reply_when_safe(self, replies: tuple[Reply, ...]) -> None:
        term = self.partition.term
        wait = term.when_acknowledged if self._needs_replicas else term.when_committed
        wait(self.partition.log.log_end_offset, partial(self._reply, replies))

    def _reply(self, replies: tuple[Reply, ...], error: RequestError | None) -> None:
        for reply in replies:
            respond = self._waiting.pop(reply.token, None)
            if respond is not None:
                respond(reply.value if error is None else self._unavailable(error))

    def _fail_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for respond in waiting.values():
            respond(self.refusal() or self._unavailable())

    def refusal(self) -> RequestError | None:
        """Return the reason why the machine cannot be asked now."""
        try:
            term = self.partition.term
            term.check_writable()
            if self._needs_replicas:
                term.check_replicas()
        except RequestError as error:
            return self._unavailable(error)
        return self._unavailable() if self.is_stopped else None

    def _unavailable(self, error: RequestError | None = None) -> RequestError:
        if error is not None and error.kind not in _DISK_FAILURES:
            return error
        reason = f"{self.partition.identity} is being closed" if error is None else error.message
        return RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, reason)

    def _set_alarm(self) -> None:
        self._alarm.at(self._machine.next_deadline_ms())

    def _clock_set(self, by_ms: int) -> None:
        self._machine.clock_set(by_ms)
        self._set_alarm()


def coordinator_uncertain(partition: Partition) -> RequestError:
    """Return the error while another broker may lead the partition already."""
    return RequestError(
        ErrorKind.COORDINATOR_NOT_AVAILABLE,
        f"{partition.identity}: this broker has not heard from the metadata store for too long to lead: ask again",
    )


def _respond_decided(respond: Respond[Any], answer: object) -> None:
    """Answer a command that must not be executed by the next leader as well."""
    if isinstance(answer, RequestError) and answer.kind in _ASKED_AGAIN:
        answer = RequestError(ErrorKind.REQUEST_TIMED_OUT, f"{answer.message}; the request may have been executed")
    respond(answer)


def replay(log: Log, machine: StateMachine[Asked]) -> Entries:
    """Apply the records of a log, oldest first, and resolve its transactions. Blocks; call it off the event loop.

    Returns the leader epochs of another log that it states last; see `stated_epochs`. Raises StorageFailure.
    """
    stated: Entries = ()
    for header, content in _stored(log):
        if is_marker(header):
            marker = decode_marker(header, content)
            if marker is not None:
                machine.resolve(_producer_of(marker), marker.commits, header.max_timestamp)
        elif not header.attributes & CONTROL:
            producer = None
            if is_transactional(header):
                producer = ProducerIdentity(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))
            for record in decode_records(content):
                machine.apply(LogRecord(record.key, record.value, record.timestamp_ms, producer))
                entries = read_epochs(record.headers)
                stated = stated if entries is None else entries
    return stated


def _stored(log: Log) -> Iterator[tuple[BatchHeader, bytes]]:
    start_offset = log.log_start_offset
    for header, _, content in batches_between(log, start_offset, log.written_offset):
        if header.base_offset >= start_offset:
            yield header, content


def _producer_of(marker: TransactionMarker) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(marker.producer_id), ProducerEpoch(marker.producer_epoch))
