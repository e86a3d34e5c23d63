"""Settles leased messages: ack, nack, extend the lease, or reject to the dead-letter topic.

A target is the ack id of a lease or the id of a message; every target gets a result of its own. An ack may belong to a
transaction: the messages are settled once it commits, and return if it is aborted.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from conveyor.broker.answers import all_answered
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.produce.outgoing_message import Transaction
from conveyor.broker.queues.message_targets import find_target
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.broker.queues.transactional_acks import TransactionalAcks
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.queue_commands import Acknowledge, Extend, NackMessages, Reject, Settled, SettleMessages, Target
from conveyor.queues.subscription.policy import Subscription

MAX_TARGETS = 10_000

Results = list[RequestError | None]
"""One result for each target, in order: None if it was settled."""


_Ask = Callable[[Subscription, int, tuple[Target, ...]], Awaitable[Settled]]
"""Settles the targets of a subscription in one partition."""


class Settlements:
    """See the module's docstring. Every method raises RequestError if the request as a whole is refused."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        partitions: SubscribedPartitions,
        calls: QueueCalls,
        transactional_acks: TransactionalAcks,
    ) -> None:
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._calls = calls
        self._transactional_acks = transactional_acks

    async def ack(self, caller: Caller, name: str, targets: Sequence[str]) -> Results:
        """Acknowledge messages: once this returns they are never delivered to the subscription again."""
        return await self._settle(caller, name, targets, Acknowledge)

    async def ack_in_transaction(
        self, caller: Caller, name: str, targets: Sequence[str], transaction: Transaction
    ) -> Results:
        """Acknowledge messages once a transaction commits. In each partition all targets succeed, or none."""
        return await self._settle_by(
            name, targets, partial(self._transactional_acks.ask, caller, transaction=transaction)
        )

    async def nack(self, caller: Caller, name: str, targets: Sequence[str], delay_ms: int | None) -> Results:
        """Report failed messages. delay_ms: time until the next delivery; None for the subscription's backoff."""
        return await self._settle(caller, name, targets, NackMessages, delay_ms=delay_ms)

    async def extend(self, caller: Caller, name: str, targets: Sequence[str], visibility_ms: int) -> Results:
        """Make the leases of messages end `visibility_ms` from now."""
        return await self._settle(caller, name, targets, Extend, visibility_ms=visibility_ms)

    async def reject(self, caller: Caller, name: str, targets: Sequence[str], reason: str) -> Results:
        """Send messages to the dead-letter topic without further deliveries."""
        return await self._settle(caller, name, targets, Reject, reason=reason)

    async def _settle(
        self, caller: Caller, name: str, texts: Sequence[str], kind: type[SettleMessages], **fields: object
    ) -> Results:
        """kind, fields: of the command, besides its subscription and its targets."""

        async def ask(subscription: Subscription, number: int, targets: tuple[Target, ...]) -> Settled:
            command = kind(subscription=subscription.id, targets=targets, **fields)
            return await self._calls.ask(caller, subscription.topic, subscription.topic_id, number, command)

        return await self._settle_by(name, texts, ask)

    async def _settle_by(self, name: str, texts: Sequence[str], ask: _Ask) -> Results:
        subscription = self._subscriptions.existing(name)
        if len(texts) > MAX_TARGETS:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"{len(texts)} messages at once: at most {MAX_TARGETS}")
        await self._partitions.ready(subscription)
        count = self._partitions.count(subscription)
        results: Results = [None] * len(texts)
        by_partition: dict[int, list[tuple[int, Target]]] = {}
        for index, text in enumerate(texts):
            resolved = find_target(subscription, text, count)
            if isinstance(resolved, RequestError):
                results[index] = resolved
            else:
                by_partition.setdefault(resolved[0], []).append((index, resolved[1]))
        questions = [
            _result(ask(subscription, number, tuple(target for _, target in indexed)))
            for number, indexed in by_partition.items()
        ]
        answers = await all_answered(questions)
        failed = [answer for answer in answers if isinstance(answer, RequestError)]
        if failed and len(failed) == len(answers):
            raise failed[0]
        for indexed, answer in zip(by_partition.values(), answers, strict=True):
            errors = [answer] * len(indexed) if isinstance(answer, RequestError) else answer
            for (index, _), error in zip(indexed, errors, strict=True):
                results[index] = error
        return results


async def _result(answer: Awaitable[Settled]) -> Settled | RequestError:
    """Return the results of one partition, or why its leader has given none: other partitions may be settled."""
    try:
        return await answer
    except RequestError as error:
        return error
