"""Settles leased messages: ack, nack, extend the lease, or reject to the dead-letter topic.

A target is the ack id of a lease or the id of a message; every target gets a result of its own. An ack may belong to a
transaction: the messages are settled once it commits, and return if it is aborted.
"""

from collections.abc import Callable, Sequence
from functools import partial

from conveyor.broker.answers import answered
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.produce.outgoing_message import Transaction
from conveyor.broker.queues.message_targets import find_target
from conveyor.broker.queues.queue_calls import QueueCalls, place_of
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.broker.queues.transactional_acks import TransactionalAcks
from conveyor.broker.services import Services
from conveyor.broker.slices import Slices
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.queue_commands import Acknowledge, Extend, NackMessages, Reject, Settled, SettleMessages, Target
from conveyor.queues.subscription.policy import Subscription

MAX_TARGETS = 10_000
_AT_ONCE = 1_000
"""The most targets of a request that are settled in one turn of the event loop: about 10 ms."""

Results = list[RequestError | None]
"""One result for each target, in order: None if it was settled."""


Reply = Callable[[Results | RequestError], None]

_Settled = Callable[[Settled | RequestError], None]
_Submit = Callable[[Subscription, int, tuple[Target, ...], _Settled], None]
"""Settles the targets of a subscription in one partition."""


class Settlements:
    """See the module's docstring. A request that is refused as a whole gets a RequestError, as its answer or raised."""

    def __init__(
        self,
        services: Services,
        subscriptions: Subscriptions,
        partitions: SubscribedPartitions,
        calls: QueueCalls,
        transactional_acks: TransactionalAcks,
    ) -> None:
        self._tasks = services.tasks
        self._slices = services.slices
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._calls = calls
        self._transactional_acks = transactional_acks

    def ack(
        self, caller: Caller, name: str, targets: Sequence[str], reply: Reply, *, accepts_late: bool = False
    ) -> None:
        """Acknowledge messages: once this is answered they are never delivered to the subscription again.

        accepts_late: see `Acknowledge`.
        """
        self._settle(caller, name, targets, reply, Acknowledge, accepts_late=accepts_late)

    async def ack_in_transaction(
        self, caller: Caller, name: str, targets: Sequence[str], transaction: Transaction
    ) -> Results:
        """Acknowledge messages once a transaction commits. In each partition all targets succeed, or none."""
        ask = self._transactional_acks.ask

        def submit(subscription: Subscription, number: int, targets: tuple[Target, ...], reply: _Settled) -> None:
            self._tasks.answer(ask(caller, subscription, number, targets, transaction), reply)

        return await answered(partial(self._settle_by, name, targets, submit, at_once=MAX_TARGETS))

    def nack(self, caller: Caller, name: str, targets: Sequence[str], delay_ms: int | None, reply: Reply) -> None:
        """Report failed messages. delay_ms: time until the next delivery; None for the subscription's backoff."""
        self._settle(caller, name, targets, reply, NackMessages, delay_ms=delay_ms)

    def extend(self, caller: Caller, name: str, targets: Sequence[str], visibility_ms: int, reply: Reply) -> None:
        """Make the leases of messages end `visibility_ms` from now."""
        self._settle(caller, name, targets, reply, Extend, visibility_ms=visibility_ms)

    def change_visibility(
        self, caller: Caller, name: str, targets: Sequence[str], visibility_ms: int, reply: Reply, *, accepts_late: bool
    ) -> None:
        """Make leases end `visibility_ms` from now; 0 ends them. accepts_late: see `ChangeLeases`."""
        if visibility_ms:
            fields = {"visibility_ms": visibility_ms, "accepts_late": accepts_late}
            self._settle(caller, name, targets, reply, Extend, **fields)
        else:
            self._settle(caller, name, targets, reply, NackMessages, delay_ms=0, accepts_late=accepts_late)

    def reject(self, caller: Caller, name: str, targets: Sequence[str], reason: str, reply: Reply) -> None:
        """Send messages to the dead-letter topic without further deliveries."""
        self._settle(caller, name, targets, reply, Reject, reason=reason)

    def _settle(
        self,
        caller: Caller,
        name: str,
        texts: Sequence[str],
        reply: Reply,
        kind: type[SettleMessages],
        **fields: object,
    ) -> None:
        """kind, fields: of the command, besides its subscription and its targets."""

        def submit(subscription: Subscription, number: int, targets: tuple[Target, ...], settled: _Settled) -> None:
            command = kind(subscription=subscription.id, targets=targets, **fields)
            self._calls.submit(caller, place_of(subscription, number), command, settled)

        self._settle_by(name, texts, submit, reply)

    def _settle_by(
        self, name: str, texts: Sequence[str], submit: _Submit, reply: Reply, *, at_once: int = _AT_ONCE
    ) -> None:
        subscription = self._subscriptions.existing(name)
        if len(texts) > MAX_TARGETS:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"{len(texts)} messages at once: at most {MAX_TARGETS}")

        def settle(reply: Reply) -> None:
            count = self._partitions.count(subscription)
            _Settling(texts, reply, subscription, count, submit, self._slices).submit_from(0, at_once)

        self._partitions.when_ready(subscription, settle, reply)


class _Settling:
    """One request, answered when all its partitions have answered."""

    __slots__ = (
        "_errors", "_open", "_partition_count", "_reply", "_results", "_slices", "_submit", "_submitted",
        "_subscription", "_texts",
    )  # fmt: skip

    def __init__(
        self,
        texts: Sequence[str],
        reply: Reply,
        subscription: Subscription,
        partition_count: int,
        submit: _Submit,
        slices: Slices,
    ) -> None:
        self._texts = texts
        self._reply = reply
        self._subscription = subscription
        self._partition_count = partition_count
        self._submit = submit
        self._slices = slices
        self._results: Results = [None] * len(texts)
        self._errors: list[RequestError] = []
        self._submitted = 0
        self._open = 1

    def submit_from(self, start: int, at_once: int) -> None:
        """Settle so many targets in their partitions at once, so that their disk writes are flushed together, and the
        others in later turns.
        """
        end = start + at_once
        by_partition: dict[int, tuple[list[int], list[Target]]] = {}
        for index, text in enumerate(self._texts[start:end], start):
            resolved = find_target(self._subscription, text, self._partition_count)
            if isinstance(resolved, RequestError):
                self._results[index] = resolved
                continue
            number, target = resolved
            found = by_partition.get(number)
            if found is None:
                found = by_partition[number] = ([], [])
            found[0].append(index)
            found[1].append(target)
        self._submitted += len(by_partition)
        self._open += len(by_partition)
        for number, (indexes, targets) in by_partition.items():
            self._submit(self._subscription, number, tuple(targets), partial(self._settled, indexes))
        rest = partial(self.submit_from, end, at_once)
        if end >= len(self._texts):
            self._end_one()
        elif not self._slices.later(rest):  # The broker stops: its partitions refuse the rest.
            rest()

    def _settled(self, indexes: Sequence[int], answer: Settled | RequestError) -> None:
        """Note the results of one partition, or why its leader has given none: other partitions may be settled."""
        if not isinstance(answer, RequestError) and len(answer) != len(indexes):
            answer = RequestError(
                ErrorKind.UNSUPPORTED_VERSION, "the leader of a partition has answered for other messages"
            )
        if isinstance(answer, RequestError):
            self._errors.append(answer)
            answer = (answer,) * len(indexes)
        for index, error in zip(indexes, answer, strict=True):
            self._results[index] = error
        self._end_one()

    def _end_one(self) -> None:
        self._open -= 1
        if not self._open:
            is_refused = bool(self._errors) and len(self._errors) == self._submitted
            self._reply(self._errors[0] if is_refused else self._results)
