"""Runs one state machine on one partition: appends what it decides, applies it, and holds replies until it is safe.

    submit -> handle -> append records -> apply -> (high watermark) -> replies

The machine is loaded by `replay`, which reads the partition from its start. After a failed append the state in memory
is not what the log says, whatever the reason: the disk, or a log that refuses the records (somebody has made an
internal topic's `max.message.bytes` too small, say). So the partition goes offline, and the machine with it: everybody
gets COORDINATOR_NOT_AVAILABLE, until the log is opened again and another runner replays what is true.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Generic

from conveyor.kernel.errors import DiskFull, ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.kernel.state_machine import Command, LogRecord, Outcome, Reply, StateMachine, Token
from conveyor.log.log import Log
from conveyor.records.batch import batch_is_intact, iterate_batches
from conveyor.records.record import Record, decode_records, encode_batch
from conveyor.replication.partition import Partition

Respond = Callable[[object], None]
"""Takes a reply's value, or a RequestError."""

_READ_BYTES = 1 << 20


class MachineRunner(Generic[Command]):
    """See the module's docstring. `stepped` is called after each decision, when its records are applied."""

    def __init__(
        self,
        partition: Partition,
        machine: StateMachine[Command],
        clock: Clock,
        stepped: Callable[[], None] | None = None,
    ) -> None:
        self._partition = partition
        self._stepped = stepped
        self._machine = machine
        self._clock = clock
        self._tokens = count(1)
        self._waiting: dict[Token, Respond] = {}
        self._alarm_ms: int | None = None
        self._cancel_alarm: Callable[[], None] | None = None
        self._unfollow_clock = clock.when_set(self._clock_set)
        self._set_alarm()

    def submit(self, command: Command, respond: Respond) -> Token:
        """Hand a command to the machine; `respond` is called once, now or later. Returns what `forget` takes."""
        token = Token(next(self._tokens))
        if self._partition.offline_reason is not None:
            respond(self._unavailable())
            return token
        outcome = self._machine.handle(command, token, self._clock.now_ms())
        self._waiting[token] = respond
        self._carry_out(outcome)
        return token

    def forget(self, token: Token) -> None:
        """Nobody waits for this reply any more: its connection is gone."""
        self._waiting.pop(token, None)

    def wake(self) -> None:
        """Something outside of the log has changed what the machine waits for."""
        self._set_alarm()

    def append_snapshot(self, records: Sequence[LogRecord]) -> int | None:
        """Append records that make the machine's state from nothing, as one batch. Returns the offset of the first.

        None if they cannot be appended: the partition is offline then.
        """
        offset = self._partition.log.log_end_offset
        return offset if self._append_batch(records, self._clock.now_ms()) else None

    def stop(self) -> None:
        """Answer everybody who waits, and set no more alarms."""
        self._unfollow_clock()
        if self._cancel_alarm is not None:
            self._cancel_alarm()
        self._fail_all()

    def _carry_out(self, outcome: Outcome) -> None:
        if outcome.records and not self._append(outcome.records):
            return self._fail_all()
        if outcome.at_once:
            self._reply(outcome.replies, None)
        elif outcome.replies:
            self._reply_when_safe(outcome.replies)
        self._set_alarm()
        if self._stepped is not None:
            self._stepped()

    def _append(self, records: tuple[LogRecord, ...]) -> bool:
        now_ms = self._clock.now_ms()
        if not self._append_batch(records, now_ms):
            return False
        for record in records:
            self._machine.apply(LogRecord(record.key, record.value, now_ms))
        return True

    def _append_batch(self, records: Sequence[LogRecord], now_ms: int) -> bool:
        batch = encode_batch([(now_ms, record.key, record.value, ()) for record in records])
        try:
            self._partition.append(batch, now_ms)
        except RequestError as error:
            kind = DiskFull if error.kind is ErrorKind.DISK_FULL else StorageFailure
            self._partition.go_offline(kind(f"what was decided could not be written: {error}"))
            return False
        return True

    def _reply_when_safe(self, replies: tuple[Reply, ...]) -> None:
        self._partition.when_committed(self._partition.log.log_end_offset, partial(self._reply, replies))

    def _reply(self, replies: tuple[Reply, ...], error: RequestError | None) -> None:
        for reply in replies:
            respond = self._waiting.pop(reply.token, None)
            if respond is not None:
                respond(reply.value if error is None else self._unavailable())

    def _fail_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for respond in waiting.values():
            respond(self._unavailable())

    def _unavailable(self) -> RequestError:
        partition = self._partition
        reason = (
            f"is offline: {partition.offline_reason}" if partition.offline_reason is not None else "is being closed"
        )
        return RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"{partition.identity} {reason}")

    def _set_alarm(self) -> None:
        deadline = self._machine.next_deadline_ms()
        if deadline == self._alarm_ms:
            return
        if self._cancel_alarm is not None:
            self._cancel_alarm()
        self._alarm_ms = deadline
        self._cancel_alarm = None if deadline is None else self._clock.call_at(deadline, self._on_alarm)

    def _clock_set(self, by_ms: int) -> None:
        self._machine.clock_set(by_ms)
        self._set_alarm()

    def _on_alarm(self) -> None:
        self._alarm_ms = self._cancel_alarm = None
        if self._partition.offline_reason is None:
            self._carry_out(self._machine.expire(self._clock.now_ms()))


def replay(log: Log, machine: StateMachine[Command]) -> None:
    """Apply every record of a log, oldest first. Blocks; call it off the event loop. Raises StorageFailure."""
    offset: int = log.log_start_offset
    while offset < log.written_offset:
        found = log.read(offset, _READ_BYTES, log.written_offset, at_least_one=True)
        if found is None:  # Compaction has left nothing up to the end.
            return
        content = found.file.read(found.position, found.length)
        for position, header in iterate_batches(content):
            batch = content[position : position + header.size]
            if not batch_is_intact(batch):
                raise StorageFailure(f"{log.directory}: the batch at offset {header.base_offset} is damaged")
            if header.base_offset >= offset:
                _apply_all(decode_records(batch), machine)
            offset = header.next_offset


def _apply_all(records: Iterable[Record], machine: StateMachine[Command]) -> None:
    for record in records:
        machine.apply(LogRecord(record.key, record.value, record.timestamp_ms))
