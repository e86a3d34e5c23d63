"""The state machine of one partition of `__transaction_state`. It coordinates the transactions of all transactional ids
of that partition.

Hard state, changed by `apply` only: the value of each transactional id, and the answers of requests. Soft state: the
markers that are missing, their sender, deadlines, and which connection spoke last for an id. `transitions` has the
table of states. A transaction that has no partitions to end is completed with the decision itself. The contract is in
`conveyor.kernel.state_machine`.
"""

from collections import Counter
from collections.abc import Iterable

from conveyor.kernel.decision import Decision
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity, TopicPartition
from conveyor.kernel.state_machine import LogRecord, Outcome, Reply, Token
from conveyor.transactions import transitions
from conveyor.transactions.missing_markers import MissingMarkers
from conveyor.transactions.request_answers import RequestAnswers
from conveyor.transactions.stored_answer import decode_answer, decode_answer_key
from conveyor.transactions.transaction_commands import (
    AddPartitions,
    AwaitMarkers,
    DescribeTransaction,
    EndTransaction,
    FindAnswer,
    InitializeProducer,
    ListTransactions,
    OneTransactionCommand,
    RecordMarkers,
    TransactionCommand,
    TransactionLimits,
)
from conveyor.transactions.transaction_log import decode_transaction, decode_transactional_id, transaction_record
from conveyor.transactions.transaction_replies import (
    AnswerFound,
    ListedTransaction,
    ListedTransactions,
    MarkersRecorded,
    PartitionsAdded,
    ProducerIdNeeded,
    ProducerInitialized,
    TransactionDescription,
    TransactionEnded,
)
from conveyor.transactions.transaction_timers import TransactionTimers
from conveyor.transactions.transaction_value import (
    EPOCH_BUMPING_VERSION,
    NO_START,
    NO_TIMEOUT_MS,
    TransactionState,
    TransactionValue,
    client_identity,
    identity_in_log,
)

MAX_TRANSACTIONAL_ID_BYTES = 1_024
"""As of a group id. The coordinator keeps many ids, for days, and reads them all at each start."""


class TransactionMachine:
    """See the module's docstring.

    coordinator_epoch: the leader epoch of the partition. A broker that gains the partition again makes a new machine.
    """

    def __init__(self, limits: TransactionLimits, coordinator_epoch: int) -> None:
        self._limits = limits
        self._values: dict[str, TransactionValue] = {}
        self._markers = MissingMarkers(coordinator_epoch)
        self._timers = TransactionTimers(limits.id_expiration_ms)
        self.answers = RequestAnswers(limits.answer_retention_ms, limits.max_answers_bytes)
        self._newest_connections: dict[str, int] = {}
        self._is_loaded = False
        self.state_counts: Counter[TransactionState] = Counter()
        """The number of transactional ids in each state."""

    def apply(self, record: LogRecord) -> None:
        key = record.key or b""
        transactional_id = decode_transactional_id(key)
        if transactional_id is not None:
            return self._apply_value(transactional_id, record)
        answer_key = decode_answer_key(key)
        if answer_key is not None:
            answer = None if record.value is None else decode_answer(record.value)
            self.answers.apply(answer_key, answer, is_loaded=self._is_loaded)

    def _apply_value(self, transactional_id: str, record: LogRecord) -> None:
        value = None if record.value is None else decode_transaction(record.value)
        before = self._values.get(transactional_id)
        if before is not None:
            self.state_counts[before.state] -= 1
        if value is None:
            self._values.pop(transactional_id, None)
            self._newest_connections.pop(transactional_id, None)
        else:
            self._values[transactional_id] = value
            self.state_counts[value.state] += 1
        if self._is_loaded:
            self._timers.changed(transactional_id, value)

    def resolve(self, producer: ProducerIdentity, commits: bool, now_ms: int) -> None:
        """Does nothing: the log of a coordinator takes part in no transaction."""

    def loaded(self, now_ms: int) -> None:
        """Continue the transactions of the coordinator before. All markers of prepared transactions are sent again."""
        self._is_loaded = True
        self._timers.loaded(self._values, now_ms)
        self.answers.loaded(now_ms)
        for transactional_id, value in self._values.items():
            if value.state.is_prepared and value.partitions:
                self._markers.prepared(transactional_id, value)

    def clock_set(self, by_ms: int) -> None:
        """See `StateMachine.clock_set`. Timeouts of transactions shift; the age of ids follows the wall clock."""
        self._timers.clock_set(by_ms, self._values)
        self.answers.clock_set(by_ms)

    def transactional_ids(self) -> list[str]:
        """Return the transactional ids, for `ListTransactions`."""
        return list(self._values)

    def is_ending(self, transactional_id: str) -> bool:
        """True if the outcome of a transaction is decided and markers are missing."""
        value = self._values.get(transactional_id)
        return value is not None and value.state.is_prepared

    def next_deadline_ms(self) -> int | None:
        deadlines = (self._timers.next_deadline_ms(), self.answers.next_deadline_ms())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def handle(self, command: TransactionCommand[object], token: Token, now_ms: int) -> Outcome:
        decision = Decision()
        match command:
            case AwaitMarkers():
                self._markers.wait(command, token, decision)
            case ListTransactions():
                decision.reply(token, self._list(command, now_ms))
            case FindAnswer():
                return self._find_answer(command, token)
            case OneTransactionCommand():
                decision.reply(token, self._reply(command, now_ms, decision))
                self._markers.hand_out(decision)
            case _:
                raise AssertionError(f"{command} is not a command of a coordinator")
        return decision.outcome()

    def expire(self, now_ms: int) -> Outcome:
        decision, not_due, size = Decision(), list[str](), 0
        for transactional_id in self._timers.pop_due(now_ms):
            value = self._values.get(transactional_id)
            if value is None:
                continue
            if not self._timers.is_due(transactional_id, value, now_ms):
                not_due.append(transactional_id)
                continue
            count = len(decision.records)
            self._expire_one(transactional_id, value, now_ms, decision)
            size += sum(map(_size, decision.records[count:]))
            if size >= self._limits.max_expired_bytes:
                break
        for transactional_id in not_due:
            self._timers.put_back(transactional_id, self._values[transactional_id])
        for tombstone in self.answers.expire(now_ms):
            decision.records.append(tombstone)
            size += _size(tombstone)
            if size >= self._limits.max_expired_bytes:
                break
        self._markers.hand_out(decision)
        return decision.outcome()

    def _expire_one(self, transactional_id: str, value: TransactionValue, now_ms: int, decision: Decision) -> None:
        if value.state is TransactionState.ONGOING:
            self._decide(transactional_id, transitions.time_out(value, now_ms), now_ms, decision)
        elif value.state.is_prepared:
            decision.records.append(transaction_record(transactional_id, transitions.complete(value, now_ms)))
        else:
            decision.records.append(transaction_record(transactional_id, None))

    def _reply(self, command: OneTransactionCommand[object], now_ms: int, decision: Decision) -> object:
        """Decide on a command about one id. Returns the reply."""
        try:
            if command.transactional_id not in self._values:
                _check_transactional_id(command.transactional_id)
            match command:
                case InitializeProducer():
                    return self._initialize(command, now_ms, decision)
                case AddPartitions():
                    return self._add(command, now_ms, decision)
                case EndTransaction():
                    return self._end(command, now_ms, decision)
                case DescribeTransaction():
                    return self._describe(command.transactional_id)
                case RecordMarkers():
                    return self._record_markers(command, now_ms, decision)
        except transitions.SpareIdMissing:
            return ProducerIdNeeded()
        except RequestError as error:
            return error.detached()
        raise AssertionError(f"{command} is not a command of a coordinator")

    def _initialize(
        self, command: InitializeProducer, now_ms: int, decision: Decision
    ) -> ProducerInitialized | RequestError:
        timeout_ms = self._checked_timeout(command)
        transactional_id, value = command.transactional_id, self._values.get(command.transactional_id)
        if value is None:
            self._check_room()
            value = transitions.create(timeout_ms, command.spare_producer_id, now_ms)
        elif value.state is not TransactionState.ONGOING:
            value = transitions.reinitialize(value, command.expected, timeout_ms, command.spare_producer_id, now_ms)
        elif command.keep_prepared:
            value = transitions.keep(value, command.expected, command.spare_producer_id, now_ms)
        else:
            self._decide(transactional_id, transitions.fence(value, command.expected, now_ms), now_ms, decision)
            return transitions.concurrent()
        decision.records.append(transaction_record(transactional_id, value))
        self._newest_connections.pop(transactional_id, None)  # Requests from before have an old epoch.
        kept = identity_in_log(value) if value.state is TransactionState.ONGOING else None
        return ProducerInitialized(producer=client_identity(value), ongoing=kept)

    def _add(self, command: AddPartitions, now_ms: int, decision: Decision) -> PartitionsAdded:
        value = self._existing(command.transactional_id)
        if command.verify_only:
            transitions.check_may_append(value, command.producer)
            self._heard(command.transactional_id, command.connection)
            return PartitionsAdded(errors=tuple(_verified(value, command.partitions)))
        if not command.partitions:
            raise RequestError(ErrorKind.INVALID_REQUEST, "the request has no partitions")
        added = transitions.add(value, command.producer, command.partitions, command.transaction_version, now_ms)
        if added is not value:
            record = transaction_record(command.transactional_id, added)
            if _size(record) > self._limits.max_record_bytes:
                raise RequestError(ErrorKind.POLICY_VIOLATION, "the transaction has too many partitions: end it")
            decision.records.append(record)
        self._heard(command.transactional_id, command.connection)
        return PartitionsAdded(errors=(None,) * len(command.partitions))

    def _end(self, command: EndTransaction, now_ms: int, decision: Decision) -> TransactionEnded:
        value = self._existing(command.transactional_id)
        spare, version = command.spare_producer_id, command.transaction_version
        ended = transitions.end(value, command.producer, command.commit, version, spare, now_ms)
        if ended is not value:
            self._check_connection(command)
            if command.answer is not None and command.commit:
                decision.records.append(self.answers.keep(command.answer, now_ms))
            self._decide(command.transactional_id, ended, now_ms, decision)
        elif command.answer is not None and command.commit and command.answer.key not in self.answers:
            reason = "the transaction was committed by somebody else, without its answer"
            raise RequestError(ErrorKind.INVALID_TXN_STATE, reason)
        self._heard(command.transactional_id, command.connection)
        return TransactionEnded(producer=client_identity(ended))

    def _find_answer(self, command: FindAnswer, token: Token) -> Outcome:
        """The reply for an id without an answer is immediate: its commit looks again."""
        answer = self.answers.find(command.key, command.digest)
        reply: AnswerFound | RequestError = AnswerFound(answer=answer)
        if answer is None:
            try:
                self.answers.check_new(command.key)
            except RequestError as error:
                reply = error.detached()
        return Outcome(replies=(Reply(token, reply),), at_once=answer is None)

    def _check_connection(self, command: EndTransaction) -> None:
        """Refuse a request that may have been meant for an earlier transaction; see `EndTransaction`."""
        is_old = 0 < command.connection < self._newest_connections.get(command.transactional_id, 0)
        if is_old and command.transaction_version < EPOCH_BUMPING_VERSION:
            raise transitions.concurrent()

    def _record_markers(self, command: RecordMarkers, now_ms: int, decision: Decision) -> MarkersRecorded:
        if self._markers.record(command):
            value = transitions.complete(self._values[command.transactional_id], now_ms)
            decision.records.append(transaction_record(command.transactional_id, value))
        return MarkersRecorded()

    def _decide(self, transactional_id: str, prepared: TransactionValue, now_ms: int, decision: Decision) -> None:
        """Write the outcome of a transaction."""
        decision.records.append(transaction_record(transactional_id, prepared))
        if prepared.partitions:
            self._markers.prepared(transactional_id, prepared)
        else:
            decision.records.append(transaction_record(transactional_id, transitions.complete(prepared, now_ms)))

    def _describe(self, transactional_id: str) -> TransactionDescription:
        value = self._values.get(transactional_id)
        if value is None:
            raise RequestError(ErrorKind.TRANSACTIONAL_ID_NOT_FOUND, "no producer has used the transactional id lately")
        return TransactionDescription(
            state=value.state,
            timeout_ms=value.timeout_ms,
            start_ms=value.start_ms,
            producer=identity_in_log(value),
            partitions=tuple(sorted(value.partitions)),
        )

    def _list(self, command: ListTransactions, now_ms: int) -> ListedTransactions:
        values = [(name, self._values.get(name)) for name in command.transactional_ids]
        return ListedTransactions(
            transactions=tuple(
                ListedTransaction(transactional_id=name, producer=identity_in_log(value), state=value.state)
                for name, value in values
                if value is not None and _is_wanted(value, command, now_ms)
            )
        )

    def _checked_timeout(self, command: InitializeProducer) -> int:
        """Return the timeout to store. Raises RequestError."""
        if command.enable_two_phase_commit:
            if not self._limits.two_phase_commit_enable:
                raise RequestError(
                    ErrorKind.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "two-phase commit is off: see transaction.two.phase.commit.enable",
                )
            return NO_TIMEOUT_MS
        if command.keep_prepared:
            raise RequestError(ErrorKind.INVALID_REQUEST, "only two-phase commit keeps prepared transactions")
        if not 0 < command.timeout_ms <= self._limits.max_timeout_ms:
            raise RequestError(
                ErrorKind.INVALID_TRANSACTION_TIMEOUT, f"give a timeout of 1 to {self._limits.max_timeout_ms} ms"
            )
        return command.timeout_ms

    def _check_room(self) -> None:
        if len(self._values) >= self._limits.max_ids_count:
            raise RequestError(ErrorKind.POLICY_VIOLATION, "too many transactional ids: reuse them")

    def _existing(self, transactional_id: str) -> TransactionValue:
        value = self._values.get(transactional_id)
        if value is None:
            raise RequestError(
                ErrorKind.INVALID_PRODUCER_ID_MAPPING, "the transactional id is unknown or has expired: initialize it"
            )
        return value

    def _heard(self, transactional_id: str, connection: int) -> None:
        if connection > self._newest_connections.get(transactional_id, 0):
            self._newest_connections[transactional_id] = connection


def _check_transactional_id(transactional_id: str) -> None:
    try:
        is_valid = 0 < len(transactional_id.encode()) <= MAX_TRANSACTIONAL_ID_BYTES
    except UnicodeEncodeError:
        is_valid = False
    if not is_valid:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"a transactional id has 1 to {MAX_TRANSACTIONAL_ID_BYTES} bytes")


def _verified(value: TransactionValue, partitions: Iterable[TopicPartition]) -> Iterable[RequestError | None]:
    members = value.partitions if value.state is TransactionState.ONGOING else frozenset()
    for partition in partitions:
        reason = f"{partition} takes no part in the transaction: abort it"
        yield None if partition in members else RequestError(ErrorKind.TRANSACTION_ABORTABLE, reason)


def _is_wanted(value: TransactionValue, command: ListTransactions, now_ms: int) -> bool:
    lasts_long = command.min_duration_ms < 0 or (
        value.start_ms != NO_START and now_ms - value.start_ms > command.min_duration_ms
    )
    return (
        lasts_long
        and (not command.states or value.state in command.states)
        and (not command.producer_ids or value.producer_id in command.producer_ids)
    )


def _size(record: LogRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")
