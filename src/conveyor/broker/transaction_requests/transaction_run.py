"""Runs one request in a transaction of a pooled producer.

    begin -> publish -> acknowledge -> commit
                 |           |            |
                 +-----------+------------+-> abort

A hop whose outcome is unknown is not repeated: the transaction is aborted. Only its own run commits a transaction, so
one that a run leaves open is aborted by its timeout, or by the next transaction of its producer. Messages are
acknowledged after all messages are published, because an abort ends their leases: a refused message costs none.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from conveyor.broker.answers import all_answered
from conveyor.broker.coordinators.transaction_coordinators import TransactionCoordinator, TransactionCoordinators
from conveyor.broker.produce.message_batches import OTHER_REFUSED
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.produce.outgoing_message import PublishedMessage, Transaction
from conveyor.broker.queues.settlements import Settlements
from conveyor.broker.transaction_requests.producer_pool import PooledProducer, ProducerPool
from conveyor.broker.transaction_requests.transaction_request import (
    Acknowledgement,
    TopicMessage,
    TransactionRequest,
    encode_published,
)
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError
from conveyor.kernel.ports import Clock
from conveyor.transactions.request_answers import AnsweredBefore
from conveyor.transactions.stored_answer import AnswerKey, NewAnswer
from conveyor.transactions.transaction_commands import EndTransaction, InitializeProducer
from conveyor.transactions.transaction_value import EPOCH_BUMPING_VERSION

MAX_TOPICS = 100
"""Limit of topics in one request."""

_LONGEST_END_MS = 1_000
"""The longest wait for the markers of a transaction. They are usually written within some milliseconds."""
_KNOWN_MS = 60_000
"""A producer's identity is used this long for its next transaction without asking the coordinator again."""
_NAMED_COUNT = 10
"""An error names at most this many refused messages."""
_NAMED_LENGTH = 100

_OF_THE_RUN = (
    ErrorKind.CONCURRENT_TRANSACTIONS,
    ErrorKind.INVALID_PRODUCER_EPOCH,
    ErrorKind.INVALID_PRODUCER_ID_MAPPING,
    ErrorKind.INVALID_TXN_STATE,
    ErrorKind.NOT_LEADER,
    ErrorKind.PRODUCER_FENCED,
    ErrorKind.REQUEST_TIMED_OUT,
    ErrorKind.TRANSACTION_OUTCOME_UNKNOWN,
)
"""The refusals that another run of the same request does not meet."""

_NOT_COMMITTED = (
    ErrorKind.CONCURRENT_TRANSACTIONS,
    ErrorKind.INVALID_PRODUCER_ID_MAPPING,
    ErrorKind.INVALID_TXN_STATE,
    ErrorKind.POLICY_VIOLATION,
    ErrorKind.PRODUCER_FENCED,
    ErrorKind.THROTTLING_QUOTA_EXCEEDED,
)
"""The refusals of a commit by the coordinator. Other errors leave open whether it was committed."""


class _Open(NamedTuple):
    """The transaction of one run."""

    coordinator: TransactionCoordinator
    producer: PooledProducer
    transaction: Transaction


class TransactionRunner:
    """See the module's docstring. timeout_ms: of the transactions."""

    def __init__(
        self,
        transactions: TransactionCoordinators,
        publisher: MessagePublisher,
        settlements: Settlements,
        clock: Clock,
        timeout_ms: int,
    ) -> None:
        self._transactions = transactions
        self._publisher = publisher
        self._settlements = settlements
        self._clock = clock
        self._timeout_ms = timeout_ms

    async def run(
        self,
        caller: Caller,
        coordinator: TransactionCoordinator,
        pool: ProducerPool,
        request: TransactionRequest,
        key: AnswerKey | None,
        digest: bytes,
    ) -> list[PublishedMessage]:
        """Return the places of the messages, once everything is committed. key: of the answer to keep. digest: see
        `NewAnswer`.

        Raises AnsweredBefore if another run of the request has committed; RequestError: TRANSACTION_OUTCOME_UNKNOWN;
        NotLeader only if the run has not begun; after all others nothing was published or acknowledged.
        """
        with not_executed():
            producer = pool.take(coordinator.machine)
        try:
            with not_executed():
                transaction = await self._begin(coordinator, producer)
            run = _Open(coordinator, producer, transaction)
            try:
                published = await self._publish(caller, transaction, request.messages)
                await self._acknowledge(caller, transaction, request.acknowledgements)
            except RequestError:
                await self._abort(run)
                raise
            answer = None
            if key is not None:
                content = encode_published(published)
                answer = NewAnswer(key=key, digest=digest, content=content)
            await self._commit(run, answer)
        finally:
            pool.give_back(producer)
        return published

    async def _begin(self, coordinator: TransactionCoordinator, producer: PooledProducer) -> Transaction:
        transactional_id = producer.transactional_id
        await coordinator.until_ended(transactional_id, _LONGEST_END_MS)
        identity, producer.identity = producer.identity, None
        if identity is None or producer.known_until_ms <= self._clock.steady_ms():
            command = InitializeProducer(transactional_id=transactional_id, timeout_ms=self._timeout_ms)
            try:
                identity = (await self._transactions.ask_here(command)).producer
            except RequestError as error:
                if error.kind is not ErrorKind.CONCURRENT_TRANSACTIONS:
                    raise
                await coordinator.until_ended(transactional_id, _LONGEST_END_MS)  # The command has aborted it.
                identity = (await self._transactions.ask_here(command)).producer
        return Transaction(transactional_id, identity)

    async def _commit(self, run: _Open, answer: NewAnswer | None) -> None:
        """Raise RequestError; see `run`."""
        try:
            await self._end(run, commit=True, answer=answer)
        except RequestError as error:
            is_aborted = await self._abort(run)
            if isinstance(error, AnsweredBefore):
                raise
            if error.kind in _NOT_COMMITTED or is_aborted:
                raise _refusal(f"the transaction was aborted: {error.message}", error) from error
            raise outcome_unknown(error) from error

    async def _abort(self, run: _Open) -> bool:
        """Return whether the transaction is aborted now."""
        try:
            await self._end(run, commit=False)
        except RequestError:
            return False
        return True

    async def _end(self, run: _Open, *, commit: bool, answer: NewAnswer | None = None) -> None:
        """Return once the outcome is durable and, if that does not take long, in the logs of all partitions."""
        transactional_id, identity = run.transaction
        command = EndTransaction(
            transactional_id=transactional_id,
            producer=identity,
            commit=commit,
            transaction_version=EPOCH_BUMPING_VERSION,
            answer=answer,
        )
        run.producer.identity = (await self._transactions.ask_here(command)).producer
        run.producer.known_until_ms = self._clock.steady_ms() + _KNOWN_MS
        await run.coordinator.until_ended(transactional_id, _LONGEST_END_MS)

    async def _publish(
        self, caller: Caller, transaction: Transaction, messages: Sequence[TopicMessage]
    ) -> list[PublishedMessage]:
        """Return the places of all messages. Raises the refusal of one of them."""
        indexes: dict[str, list[int]] = {}
        for index, (topic, _) in enumerate(messages):
            indexes.setdefault(topic, []).append(index)
        if len(indexes) > MAX_TOPICS:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"{len(indexes)} topics: at most {MAX_TOPICS} at once")
        answers = await all_answered(
            [self._publish_to(caller, topic, messages, numbers, transaction) for topic, numbers in indexes.items()]
        )
        results: list[PublishedMessage | RequestError | None] = [None] * len(messages)
        for numbers, answer in zip(indexes.values(), answers, strict=True):
            for index, result in zip(numbers, answer, strict=True):
                results[index] = result
        _check_all(results)
        return [result for result in results if isinstance(result, PublishedMessage)]

    async def _publish_to(
        self,
        caller: Caller,
        topic: str,
        messages: Sequence[TopicMessage],
        numbers: Sequence[int],
        transaction: Transaction,
    ) -> Sequence[PublishedMessage | RequestError]:
        chosen = [messages[index][1] for index in numbers]
        try:
            return await self._publisher.publish(caller, topic, chosen, transaction=transaction)
        except RequestError as error:
            return [error.detached()] * len(chosen)

    async def _acknowledge(
        self, caller: Caller, transaction: Transaction, acknowledgements: Sequence[Acknowledgement]
    ) -> None:
        """Raise RequestError, which names the messages that cannot be acknowledged."""
        results = await all_answered([self._acknowledge_for(caller, one, transaction) for one in acknowledgements])
        refused = [
            (acknowledgement.subscription, target, result)
            for acknowledgement, answer in zip(acknowledgements, results, strict=True)
            for target, result in zip(acknowledgement.targets, answer, strict=True)
            if result is not None
        ]
        if not refused:
            return
        names = "; ".join(
            f"{target[:_NAMED_LENGTH]} of subscription '{subscription}': {error.message}"
            for subscription, target, error in refused[:_NAMED_COUNT]
        )
        total = sum(len(acknowledgement.targets) for acknowledgement in acknowledgements)
        raise _refusal(f"{len(refused)} of {total} messages cannot be acknowledged: {names}", refused[0][2])

    async def _acknowledge_for(
        self, caller: Caller, acknowledgement: Acknowledgement, transaction: Transaction
    ) -> Sequence[RequestError | None]:
        subscription, targets = acknowledgement
        try:
            return await self._settlements.ack_in_transaction(caller, subscription, targets, transaction)
        except RequestError as error:
            return [error.detached()] * len(targets)


@contextmanager
def not_executed() -> Iterator[None]:
    """Raise errors as those of a request that was not executed. NotLeader stays: another broker may execute it."""
    try:
        yield
    except NotLeader:
        raise
    except RequestError as error:
        raise _refusal(error.message, error) from error


def outcome_unknown(error: RequestError) -> RequestError:
    """Return the error of a request that may have been executed."""
    reason = "it is not known whether the messages were published and acknowledged: repeat the request with its id"
    return RequestError(ErrorKind.TRANSACTION_OUTCOME_UNKNOWN, f"{reason}: {error.message}")


def _check_all(results: Sequence[PublishedMessage | RequestError | None]) -> None:
    """Raise the refusal of a message, rather of one that was not refused because of another one."""
    refusals = [(index, result) for index, result in enumerate(results) if isinstance(result, RequestError)]
    if refusals:
        index, error = next((refusal for refusal in refusals if refusal[1].message != OTHER_REFUSED), refusals[0])
        raise _refusal(f"message {index} was refused: {error.message}", error)


def _refusal(reason: str, error: RequestError) -> RequestError:
    """Return the error of a request that was not executed. It is not NotLeader, after which a call is sent again."""
    kind = ErrorKind.COORDINATOR_NOT_AVAILABLE if error.kind in _OF_THE_RUN else error.kind
    return RequestError(kind, f"nothing was published or acknowledged, because {reason}")
