"""Transactions by handle: any broker of the cluster serves the handle that one of them gave.

    begin -> handle -> publish, ack, publish -> finish (commit or abort; may be repeated)
                                             -> the timeout has passed -> aborted

The broker that gave the handle lends one of its producers to the transaction, and takes it back when the transaction
has ended. The broker that has ended it says so; otherwise the lender asks the coordinator once the timeout has passed.
If the lender fails, the coordinator aborts the transaction.

A request whose outcome is unknown is not sent again. After a publication, the transaction could lack messages or have
some twice, so it is aborted; an ack and an end are repeated by the client. A refused ack aborts the transaction, too:
others process its message again.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID

import msgspec

from conveyor.broker.answers import pause
from conveyor.broker.handles.producer_slots import ProducerSlots, Slot
from conveyor.broker.handles.transaction_handle import HandleKey, SlotName, decode_handle, encode_handle, lender_of
from conveyor.broker.hosts.transaction_calls import TransactionCalls
from conveyor.broker.produce.message_publisher import OTHER_REFUSED, MessagePublisher
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage, Transaction
from conveyor.broker.queues.settlements import Settlements
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import CALL_TIMEOUT_MS, LeaderCalls
from conveyor.broker.remote.remote import AnswerLost
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerUnreachable
from conveyor.kernel.ports import Clock

DEFAULT_TIMEOUT_MS = 60_000
MAX_TOPICS = 100
"""Limit of topics in one call of `publish_all_or_none`."""

_SHARE_OF_PRODUCERS = 10
_KNOWN_MS = 60_000
"""How long the identity that a coordinator gave for the next transaction is used without asking again."""

_PAUSE_MS = 1_000
_ENDED = (
    ErrorKind.INVALID_PRODUCER_EPOCH,
    ErrorKind.INVALID_PRODUCER_ID_MAPPING,
    ErrorKind.INVALID_TXN_STATE,
    ErrorKind.PRODUCER_FENCED,
)
"""The refusals of batches whose transaction has ended."""

_RETRIED = (*_ENDED, ErrorKind.TRANSACTION_OUTCOME_UNKNOWN)
"""The refusals that another transaction does not meet."""

_DECIDED = (ErrorKind.TRANSACTION_ABORTED, ErrorKind.TRANSACTION_ENDED, ErrorKind.UNKNOWN_TRANSACTION)
"""The refusals of an end that show that the transaction has ended before."""

Results = list[PublishedMessage | RequestError]


class TransactionHasEnded(msgspec.Struct, frozen=True, array_like=True):
    """Tell the broker that lent a producer that its transaction has ended."""

    transaction: Transaction


_ENDED_ELSEWHERE: Call[TransactionHasEnded, None] = Call(
    "transactions.ended", TransactionHasEnded, None, is_repeatable=True
)


class _Loan(msgspec.Struct, eq=False):
    """A slot that a transaction uses. cancel: stops the alarm of its timeout."""

    slot: Slot
    cancel: Callable[[], None]


class HandleTransactions:
    """See the module's docstring. Every method raises RequestError.

    max_producers: the most producers that a partition remembers. This broker uses a tenth of them.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        start_id: UUID,
        key: HandleKey,
        calls: TransactionCalls,
        leaders: LeaderCalls,
        publisher: MessagePublisher,
        settlements: Settlements,
        clock: Clock,
        tasks: Tasks,
        max_producers: int,
    ) -> None:
        self.slots = ProducerSlots(SlotName(node_id, start_id, 0), max(1, max_producers // _SHARE_OF_PRODUCERS))
        self._key = key
        self._node_id = node_id
        self._calls = calls
        self._leaders = leaders
        self._publisher = publisher
        self._settlements = settlements
        self._clock = clock
        self._tasks = tasks
        self._loans: dict[Transaction, _Loan] = {}
        leaders.handlers.register(_ENDED_ELSEWHERE, self._ended_elsewhere)

    async def begin(self, timeout_ms: int) -> str:
        """Return the handle of a new transaction, which is aborted after `timeout_ms`."""
        key = await self._key.get()
        slot, transaction = await self._borrow(timeout_ms)
        self._lend(slot, transaction, timeout_ms)
        return encode_handle(slot.name, transaction.producer, key)

    async def publish(self, handle: str, topic: str, messages: Sequence[OutgoingMessage]) -> Results:
        """Publish messages in a transaction. Returns one result for each, in order; see `MessagePublisher.publish`.

        Raises RequestError: TRANSACTION_ENDED; TRANSACTION_OUTCOME_UNKNOWN if the transaction cannot be used any more,
        and aborts it. A message that was refused does not belong to the transaction, and does not end it.
        """
        transaction = await self._decoded(handle)
        try:
            results = await self._publisher.publish(topic, messages, transaction=transaction)
        except RequestError as error:
            if error.kind is not ErrorKind.TRANSACTION_OUTCOME_UNKNOWN:
                raise
            raise await self._of_no_more_use(transaction, error) from error
        _check_not_ended(results)
        return results

    async def ack(self, handle: str, subscription: str, targets: Sequence[str]) -> None:
        """Acknowledge messages in a transaction; see `Settlements.ack_in_transaction`. May be repeated.

        Raises RequestError: TRANSACTION_ENDED; a retriable one, if the request is to be repeated; or why a message is
        refused, and aborts the transaction.
        """
        transaction = await self._decoded(handle)
        results: Sequence[RequestError | None]
        try:
            results = await self._settlements.ack_in_transaction(subscription, targets, transaction)
        except RequestError as error:
            results = [error]
        _check_not_ended(results)
        refusals = [result for result in results if result is not None]
        final = next((refusal for refusal in refusals if not ERRORS[refusal.kind].retriable), None)
        if final is not None:
            raise await self._of_no_more_use(transaction, final)
        if refusals:
            raise refusals[0]

    async def finish(self, handle: str, *, commit: bool) -> None:
        """Commit or abort a transaction. The same request may be repeated for a minute.

        Raises RequestError: TRANSACTION_ABORTED, TRANSACTION_ENDED if it has the other outcome; UNKNOWN_TRANSACTION if
        its outcome is no longer known; TRANSACTION_OUTCOME_UNKNOWN if the request has to be repeated.
        """
        transaction = await self._decoded(handle)
        try:
            await self._calls.finish(*transaction, commit=commit)
        except RequestError as error:
            if error.kind in _DECIDED:
                self._ended(transaction)
                raise
            raise _outcome_unknown(error) from error
        self._ended(transaction)

    async def publish_all_or_none(self, messages: Sequence[tuple[str, OutgoingMessage]]) -> list[PublishedMessage]:
        """Publish messages of (topic, message) in a transaction of their own, and commit it. Returns their places.

        Raises RequestError: why no message was published, which is the refusal of one of them; or
        TRANSACTION_OUTCOME_UNKNOWN, with the handle to ask by.
        """
        key = await self._key.get()
        slot, transaction = await self._borrow(DEFAULT_TIMEOUT_MS)
        try:
            published = await self._published(transaction, messages)
        except RequestError:
            await self._abort_and_give_back(slot, transaction)
            raise
        try:
            slot.producer = await self._calls.finish(*transaction, commit=True)
        except RequestError as error:
            self._lend(slot, transaction, DEFAULT_TIMEOUT_MS)
            if error.kind in _DECIDED:
                reason = f"no message was published, because the transaction was aborted: {error.message}"
                raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, reason) from error
            handle = encode_handle(slot.name, transaction.producer, key)
            raise _outcome_unknown(error, f"POST /transactions/{handle}/commit") from error
        self._give_back(slot)
        return published

    def stop(self) -> None:
        """Take no producer back any more: the broker stops."""
        for loan in self._loans.values():
            loan.cancel()

    async def _of_no_more_use(self, transaction: Transaction, error: RequestError) -> RequestError:
        """Abort a transaction that cannot be committed. Returns the error for the client."""
        advice = "it was aborted: begin a new one" if await self._try_to_abort(transaction) else "abort it"
        return RequestError(error.kind, f"{error.message}; the transaction is of no more use: {advice}")

    async def _decoded(self, handle: str) -> Transaction:
        return decode_handle(handle, await self._key.get())

    async def _borrow(self, timeout_ms: int) -> tuple[Slot, Transaction]:
        """Take a slot, and let its producer begin a transaction."""
        now_ms = self._clock.steady_ms()
        slot = self.slots.take(now_ms)
        producer, slot.producer = slot.producer, None
        if producer is None or slot.timeout_ms != timeout_ms or slot.known_until_ms <= now_ms:
            try:
                producer = await self._calls.begin(slot.name.transactional_id, timeout_ms)
            except RequestError as error:
                if error.kind is not ErrorKind.CONCURRENT_TRANSACTIONS:
                    self.slots.give_back(slot)
                    raise
                self.slots.rest(slot, now_ms)
                raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"retry later: {error.message}") from error
        slot.timeout_ms = timeout_ms
        return slot, Transaction(slot.name.transactional_id, producer)

    def _give_back(self, slot: Slot) -> None:
        slot.known_until_ms = self._clock.steady_ms() + _KNOWN_MS
        self.slots.give_back(slot)

    def _lend(self, slot: Slot, transaction: Transaction, timeout_ms: int) -> None:
        """Let a client that has the handle use a slot, until it ends the transaction or the timeout has passed."""
        cancel = self._clock.call_later(timeout_ms, partial(self._time_out, transaction))
        self._loans[transaction] = _Loan(slot, cancel)

    def _ended(self, transaction: Transaction) -> None:
        """A transaction has ended. Let its lender know, which may be another broker."""
        lender = lender_of(transaction.transactional_id)
        if lender == self._node_id:
            self._end_loan(transaction)
        else:
            self._tasks.start(self._tell(lender, transaction))

    async def _tell(self, lender: NodeId, transaction: Transaction) -> None:
        with suppress(RequestError, PeerUnreachable, AnswerLost):  # It asks the coordinator when the time is over.
            await self._leaders.ask_node(_ENDED_ELSEWHERE, lender, TransactionHasEnded(transaction), CALL_TIMEOUT_MS)

    async def _ended_elsewhere(self, request: TransactionHasEnded) -> None:
        self._end_loan(request.transaction)

    def _end_loan(self, transaction: Transaction) -> None:
        loan = self._loans.pop(transaction, None)
        if loan is not None:
            loan.cancel()
            self.slots.rest(loan.slot, self._clock.steady_ms())

    def _time_out(self, transaction: Transaction) -> None:
        self._tasks.start(self._abort_late(transaction))

    async def _abort_late(self, transaction: Transaction) -> None:
        """Abort a transaction, unless it has ended: until the coordinator knows."""
        while transaction in self._loans and not await self._try_to_abort(transaction):
            await pause(self._clock, _PAUSE_MS)

    async def _try_to_abort(self, transaction: Transaction) -> bool:
        """Return whether the transaction has ended now."""
        try:
            await self._calls.finish(*transaction, commit=False)
        except RequestError as error:
            if error.kind not in _DECIDED:
                return False
        self._ended(transaction)
        return True

    async def _abort_and_give_back(self, slot: Slot, transaction: Transaction) -> None:
        try:
            slot.producer = await self._calls.finish(*transaction, commit=False)
        except RequestError:
            self._lend(slot, transaction, 0)
        else:
            self._give_back(slot)

    async def _published(
        self, transaction: Transaction, messages: Sequence[tuple[str, OutgoingMessage]]
    ) -> list[PublishedMessage]:
        """Return the places of all messages. Raises the refusal of one of them."""
        indexes: dict[str, list[int]] = {}
        for index, (topic, _) in enumerate(messages):
            indexes.setdefault(topic, []).append(index)
        if len(indexes) > MAX_TOPICS:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"{len(indexes)} topics: at most {MAX_TOPICS} at once")
        answers = await asyncio.gather(
            *(
                self._published_to(topic, [messages[index][1] for index in numbers], transaction)
                for topic, numbers in indexes.items()
            )
        )
        results: list[PublishedMessage | RequestError | None] = [None] * len(messages)
        for numbers, answer in zip(indexes.values(), answers, strict=True):
            for index, result in zip(numbers, answer, strict=True):
                results[index] = result
        _check_all(results)
        return [result for result in results if isinstance(result, PublishedMessage)]

    async def _published_to(
        self, topic: str, messages: Sequence[OutgoingMessage], transaction: Transaction
    ) -> Sequence[PublishedMessage | RequestError]:
        try:
            return await self._publisher.publish(topic, messages, transaction=transaction)
        except RequestError as error:
            return [error] * len(messages)


def _check_not_ended(results: Sequence[object]) -> None:
    """Raise RequestError (TRANSACTION_ENDED) if a message was refused because the transaction has ended."""
    for result in results:
        if isinstance(result, RequestError) and result.kind in _ENDED:
            raise RequestError(ErrorKind.TRANSACTION_ENDED, f"the transaction has ended: {result.message}") from result


def _outcome_unknown(error: RequestError, request: str = "the request") -> RequestError:
    reason = f"it is not known whether the transaction has ended: repeat {request}: {error.message}"
    return RequestError(ErrorKind.TRANSACTION_OUTCOME_UNKNOWN, reason)


def _check_all(results: Sequence[PublishedMessage | RequestError | None]) -> None:
    """Raise the refusal of a message, rather of one that was not refused because of another one."""
    refusals = [(index, result) for index, result in enumerate(results) if isinstance(result, RequestError)]
    if not refusals:
        return
    index, error = next((refusal for refusal in refusals if refusal[1].message != OTHER_REFUSED), refusals[0])
    kind = ErrorKind.COORDINATOR_NOT_AVAILABLE if error.kind in _RETRIED else error.kind
    raise RequestError(kind, f"no message was published, because message {index} was refused: {error.message}")
