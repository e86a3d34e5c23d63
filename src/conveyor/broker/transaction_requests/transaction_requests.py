"""Executes requests in transactions: each publishes messages and acknowledges others, all of them or none.

    request -> leader of the partition of `__transaction_state` that its id hashes to:
        the id has an answer        -> that answer
        the same id is running      -> CONCURRENT_TRANSACTIONS
        otherwise                   -> run it; the answer is kept with the commit

That leader coordinates the transaction, too, so the commit and the answer are one append. A second run of the same id
finds the answer, whichever broker was asked, or its commit is refused. A request without an id is run by any
coordinator and leaves no answer. A run goes on if the broker that forwarded the request no longer waits.

Each user has ids of its own. Brokers send an id as the client has chosen it, so those of earlier versions find the same
coordinator, which takes the user from the caller.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary

from conveyor.broker.coordinators.transaction_coordinators import TransactionCoordinator, TransactionCoordinators
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.produce.outgoing_message import PublishedMessage
from conveyor.broker.queues.settlements import Settlements
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.broker.transaction_requests.producer_pool import ProducerPool
from conveyor.broker.transaction_requests.transaction_request import (
    RUN,
    RunTransaction,
    TransactionRequest,
    decode_published,
    decoded_messages,
    digest_of,
    encoded_messages,
)
from conveyor.broker.transaction_requests.transaction_run import TransactionRunner, not_executed, outcome_unknown
from conveyor.cluster.image import TRANSACTIONS_TOPIC
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.kernel.errors import ErrorKind, InconsistentState, NotLeader, RequestError
from conveyor.records.publishers import owner_of
from conveyor.transactions.request_answers import AnsweredBefore
from conveyor.transactions.stored_answer import AnswerKey, StoredAnswer
from conveyor.transactions.transaction_commands import FindAnswer

_CALL_TIMEOUT_MS = 60_000
_TIMEOUT_MS = 10_000
"""The timeout of a transaction that lives for one request. After a crash, readers of its partitions wait for it."""
_SHARE_OF_PRODUCERS = 10


class _Term(NamedTuple):
    """The parts of a coordinator that requests use. running: the requests with an id that it runs at the moment."""

    pool: ProducerPool
    running: set[AnswerKey]


class TransactionRequests:
    """See the module's docstring. A tenth of the producers that a partition remembers run requests."""

    def __init__(
        self,
        services: Services,
        transactions: TransactionCoordinators,
        publisher: MessagePublisher,
        settlements: Settlements,
        leaders: LeaderCalls,
    ) -> None:
        self._services = services
        self._transactions = transactions
        timeout_ms = min(_TIMEOUT_MS, services.settings.transactions.max_timeout_ms)
        self._runner = TransactionRunner(transactions, publisher, settlements, services.clock, timeout_ms)
        self._leaders = leaders
        self._terms: WeakKeyDictionary[TransactionCoordinator, _Term] = WeakKeyDictionary()
        self._requests_count = 0
        leaders.handlers.register(RUN, self._answer)

    async def execute(self, caller: Caller, request: TransactionRequest) -> list[PublishedMessage]:
        """Publish and acknowledge messages, all of them or none. Returns the places of the published ones, in order.

        Raises RequestError: why a message was refused; CONCURRENT_TRANSACTIONS while a request with the same id runs;
        TRANSACTION_ID_REUSED if another request had this id; THROTTLING_QUOTA_EXCEEDED; TRANSACTION_OUTCOME_UNKNOWN if
        the request may have been executed. After all others, it was not.
        """
        number = await self._partition_of(request.id)
        digest = b"" if request.id is None else await digest_of(request)
        if self._leaders.leads_here(TRANSACTIONS_TOPIC, number):
            with suppress(NotLeader):  # The run has not begun.
                return await self._run(caller, number, request, digest)
        parts = [part async for part in encoded_messages(request.messages)]
        call = RunTransaction(number, request.id, digest, parts, request.acknowledgements)
        try:
            return await self._leaders.ask(caller, RUN, TRANSACTIONS_TOPIC, number, call, _CALL_TIMEOUT_MS)
        except NotLeader as error:
            reason = f"the coordinator of the transaction is not available: {error.message}"
            raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, reason) from error
        except RequestError as error:
            if error.kind is not ErrorKind.REQUEST_TIMED_OUT:
                raise
            raise outcome_unknown(error) from error

    async def _partition_of(self, request_id: str | None) -> int:
        """Return the partition whose leader runs a request: one that this broker leads, if there is no id."""
        partitions = (await self._transactions.ensured()).partitions
        if request_id is not None:
            return partition_for_key(request_id, len(partitions))
        numbers = range(len(partitions))
        led_here = [number for number in numbers if partitions[number].leader == self._leaders.node_id]
        self._requests_count += 1
        return (led_here or numbers)[self._requests_count % len(led_here or numbers)]

    async def _answer(self, caller: Caller, call: RunTransaction) -> list[PublishedMessage]:
        """Run the request of another broker, to its end even if that broker no longer waits."""
        messages = await decoded_messages(call.messages)
        request = TransactionRequest(call.request_id, messages, call.acknowledgements)
        result = await asyncio.shield(
            self._services.tasks.start(self._result(caller, call.number, request, call.digest))
        )
        if isinstance(result, BaseException):
            raise result
        return result

    async def _result(
        self, caller: Caller, number: int, request: TransactionRequest, digest: bytes
    ) -> list[PublishedMessage] | BaseException:
        """Return the error of a run, for the broker that asked."""
        [result] = await asyncio.gather(self._run(caller, number, request, digest), return_exceptions=True)
        if isinstance(result, InconsistentState):
            raise result
        return result

    async def _run(
        self, caller: Caller, number: int, request: TransactionRequest, digest: bytes
    ) -> list[PublishedMessage]:
        """Raise RequestError: NotLeader only if the run has not begun."""
        with not_executed():
            coordinator = await self._transactions.coordinator(number)
        term = self._term(number, coordinator)
        if request.id is None:
            return await self._runner.run(caller, coordinator, term.pool, request, None, digest)
        key = AnswerKey(request.id, owner_of(caller))
        with _only_run(term, key):
            with not_executed():
                found = (await coordinator.ask(FindAnswer(key=key, digest=digest))).answer
            if found is not None:
                return _repeated(found, digest)
            try:
                return await self._runner.run(caller, coordinator, term.pool, request, key, digest)
            except AnsweredBefore as before:
                return _repeated(before.answer, digest)

    def _term(self, number: int, coordinator: TransactionCoordinator) -> _Term:
        """Return what belongs to a coordinator; each term of leadership has another one."""
        term = self._terms.get(coordinator)
        if term is None:
            count = self._transactions.partition_count()
            max_count = max(
                1, self._services.settings.producers.max_producers_per_partition // _SHARE_OF_PRODUCERS // count
            )
            term = self._terms[coordinator] = _Term(ProducerPool(number, count, max_count), set())
        return term


@contextmanager
def _only_run(term: _Term, key: AnswerKey) -> Iterator[None]:
    """Let no other run of the request begin meanwhile. Raises RequestError (CONCURRENT_TRANSACTIONS)."""
    if key in term.running:
        reason = "a request with this id is being executed: repeat it later for its answer"
        raise RequestError(ErrorKind.CONCURRENT_TRANSACTIONS, reason)
    term.running.add(key)
    try:
        yield
    finally:
        term.running.discard(key)


def _repeated(answer: StoredAnswer, digest: bytes) -> list[PublishedMessage]:
    """Return the answer of the first run to a repeated request. Raises RequestError (TRANSACTION_ID_REUSED)."""
    if answer.digest != digest:
        reason = "another request with this id was executed a short time ago: choose another id"
        raise RequestError(ErrorKind.TRANSACTION_ID_REUSED, reason)
    return decode_published(answer.content)
