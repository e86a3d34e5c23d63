"""Leasing messages: a request takes the messages that are available, or waits until one is.

A request that is cancelled while it waits, or while its leases are being written, leaves nothing leased. Requests fail
when their subscription is deleted, even if another one takes its name.

A request first takes messages of partitions that this broker leads, then asks the other leaders of the topic. Every few
requests it is the other way round, so that the messages of other brokers are not left behind. A request that waits,
waits for all leaders: see `remote_messages`. It also waits for a leader while none can be asked, and fails if there is
none at its end: that no broker could be asked does not mean that there are no messages.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID

from conveyor.broker.answers import Submit, answered, emitted
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.queues.leasing.lease_waiters import LeaseWaiters, WaitDeadline
from conveyor.broker.queues.leasing.own_leases import LeaseRequest, OwnLeases, Reply
from conveyor.broker.queues.leasing.remote_leases import LEASE, LeaseHere, RemoteLeases
from conveyor.broker.queues.leasing.remote_messages import AWAIT_MESSAGES, AwaitMessages, RemoteMessages
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.signal import Signal
from conveyor.queues.queue_commands import LeasedMessage
from conveyor.queues.subscription.policy import Subscription

log = logging.getLogger(__name__)

_OTHERS_FIRST_EVERY = 8
_TOO_LARGE_MS = 30_000
"""The time until messages that were too large for another broker may be leased again."""


class Leases:
    def __init__(
        self,
        services: Services,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
        subscribed: SubscribedPartitions,
        calls: QueueCalls,
        leaders: LeaderCalls,
    ) -> None:
        self._metadata = services.metadata
        self._subscriptions = subscriptions
        self._tasks = services.tasks
        self._subscribed = subscribed
        self._clock = services.clock
        self._waiters = LeaseWaiters()
        self._own = OwnLeases(services.clock, subscriptions, partitions, services.slices)
        self._is_stopped = False
        self._leaders = leaders
        self._requests_count = 0
        self._watched: dict[UUID, Signal[None]] = {}
        """Emitted when a subscription has messages for the calls of other brokers that wait for them."""
        self._remote_leases = RemoteLeases(services, calls, leaders)
        self._remote_messages = RemoteMessages(services, leaders, self._waiters)
        leaders.handlers.register(LEASE, self._lease_here, self._unsent)
        leaders.handlers.register(AWAIT_MESSAGES, self._await_messages)
        subscriptions.removed.listen(self._subscription_removed)
        partitions.changed.listen(self._changed)

    def stop(self) -> None:
        """Answer every waiting request with no messages."""
        self._is_stopped = True
        self._waiters.wake_all()

    def take(
        self,
        caller: Caller,
        name: str,
        max_messages: int,
        visibility_ms: int | None,
        reply: Reply,
        *,
        client_id: str = "",
    ) -> None:
        """Lease up to `max_messages` that are available now. visibility_ms: None for the subscription's policy.
        client_id: what the client calls itself.

        `reply` may get a RequestError, also NOT_LEADER if no leader can be asked. Raises one for the request itself.
        """
        self._take(self._request(caller, name, max_messages, visibility_ms, client_id), reply)

    def take_here(self, request: LeaseRequest, reply: Reply) -> None:
        """Lease messages that are available now in partitions that this broker leads and has loaded."""
        self._own.take(request, reply)

    async def lease(
        self,
        caller: Caller,
        name: str,
        max_messages: int,
        wait_ms: int,
        visibility_ms: int | None,
        *,
        client_id: str = "",
    ) -> list[LeasedMessage]:
        """Lease up to `max_messages`; none if none arrived within `wait_ms`.

        Raises RequestError: also NOT_LEADER, if no leader could be asked at the end.
        """
        request = self._request(caller, name, max_messages, visibility_ms, client_id)
        subscription = request.subscription
        leases, has_leader = list[LeasedMessage](), True
        try:
            leases = await self._answered(request, partial(self._take, request))
        except RequestError as error:
            if error.kind is not ErrorKind.NOT_LEADER or wait_ms <= 0:
                raise
            has_leader = False
        if leases or wait_ms <= 0:
            return leases
        deadline = WaitDeadline()
        cancel = self._clock.time_out(wait_ms, deadline.end)
        try:
            with self._remote_messages.watching(subscription):
                while not (leases or self._is_stopped or deadline.is_over):
                    self._subscriptions.current(subscription)
                    if not (self._remote_messages.is_ready(subscription) or self._own.ready(subscription)):
                        await self._waiters.wait(subscription, deadline)
                    leases = await self._take_ready(request)
        finally:
            cancel()
        if not (leases or has_leader or self._is_stopped):
            return await self._answered(request, partial(self._take, request))
        return leases

    def _request(
        self, caller: Caller, name: str, max_messages: int, visibility_ms: int | None, client_id: str
    ) -> LeaseRequest:
        subscription = self._subscriptions.existing(name)
        if visibility_ms is None:
            visibility_ms = subscription.policy.visibility_timeout_ms
        return LeaseRequest(caller, subscription, max_messages, visibility_ms, client_id)

    async def _answered(self, request: LeaseRequest, submit: Submit[list[LeasedMessage]]) -> list[LeasedMessage]:
        """Wait for the leases of a request. They are given back if the request is cancelled."""
        return await answered(submit, partial(self._remote_leases.give_back, request.caller, request.subscription))

    def _take(self, request: LeaseRequest, reply: Reply) -> None:
        self._subscribed.when_ready(request.subscription, partial(self._take_anywhere, request), reply)

    def _take_anywhere(self, request: LeaseRequest, reply: Reply) -> None:
        """Lease messages of this broker, or else of another one. Raises RequestError."""
        subscription = request.subscription
        self._subscribed.check_served(subscription)
        leaders = self._leaders.leaders(subscription.topic)
        if not leaders.others:
            if not leaders.is_here:
                raise RequestError(ErrorKind.NOT_LEADER, f"no broker leads topic '{subscription.topic}' at the moment")
            return self._own.take(request, reply)
        self._requests_count += 1
        others, are_first = turn_of(self._requests_count, leaders.others)
        if not leaders.is_here:
            return self._tasks.answer(self._take_from(request, others), reply)
        if are_first:
            return self._tasks.answer(self._take_of_others_first(request, others), reply)

        def taken(leases: list[LeasedMessage] | RequestError) -> None:
            if isinstance(leases, RequestError) or not leases:
                self._tasks.answer(self._take_elsewhere(request, others, leases), reply)
            else:
                reply(leases)

        self._own.take(request, taken)

    async def _take_of_others_first(self, request: LeaseRequest, others: Sequence[NodeId]) -> list[LeasedMessage]:
        return await self._take_if_served(request, others) or await answered(partial(self._own.take, request))

    async def _take_elsewhere(
        self, request: LeaseRequest, others: Sequence[NodeId], own: list[LeasedMessage] | RequestError
    ) -> list[LeasedMessage]:
        """Lease messages of other brokers. own: the answer of this broker, which is an error or no message."""
        if isinstance(own, RequestError):
            self._subscriptions.current(request.subscription)
        leases = await self._take_if_served(request, others)
        if isinstance(own, RequestError) and not leases:
            raise own
        return leases

    async def _take_if_served(self, request: LeaseRequest, others: Sequence[NodeId]) -> list[LeasedMessage]:
        """Lease messages of other brokers; none if all of them refuse, because this broker can answer too."""
        with suppress(RequestError):
            return await self._take_from(request, others)
        return []

    async def _take_from(self, request: LeaseRequest, others: Sequence[NodeId]) -> list[LeasedMessage]:
        """Lease messages of the first other broker that has some. Raises RequestError if all of them refuse."""
        failures: list[RequestError] = []
        for node_id in others:
            try:
                leases = await self._remote_leases.take(request, node_id)
            except RequestError as error:
                failures.append(error.detached())
                continue
            if leases:
                return leases
        if len(failures) == len(others):
            raise failures[0]
        return []

    async def _take_ready(self, request: LeaseRequest) -> list[LeasedMessage]:
        """Lease messages after a wake-up: of this broker, or of another one that has announced messages."""
        leases = await self._take_own(request)
        while not leases and (ready := self._remote_messages.take_ready(request.subscription)) is not None:
            node_id, asked = ready
            try:
                with suppress(RequestError):
                    leases = await self._remote_leases.take(request, node_id)
            finally:
                asked(bool(leases))
        return leases

    async def _take_own(self, request: LeaseRequest) -> list[LeasedMessage]:
        """Lease messages of this broker."""
        return await self._answered(request, partial(self._own.take, request))

    async def _lease_here(self, caller: Caller, request: LeaseHere) -> list[LeasedMessage]:
        """Answer another broker."""
        subscription = self._subscriptions.identified(request.subscription, request.subscription_id)
        await self._subscribed.ready(subscription)
        self._subscribed.check_served(subscription)
        count, visibility_ms, client_id = request.count, request.visibility_ms, request.client_id
        return await self._take_own(LeaseRequest(caller, subscription, count, visibility_ms, client_id))

    def _unsent(self, caller: Caller, request: LeaseHere, leases: Sequence[LeasedMessage]) -> None:
        """Take back messages that are too large for another broker. Meanwhile it can lease those behind them."""
        log.warning(
            "messages too large for a lease through another broker subscription=%s topic=%s messages=%s",
            request.subscription, leases[0].message.topic, ",".join(lease.message.message_id for lease in leases[:10]),
        )  # fmt: skip
        with suppress(RequestError):
            subscription = self._subscriptions.identified(request.subscription, request.subscription_id)
            self._remote_leases.give_back(caller, subscription, leases, delay_ms=_TOO_LARGE_MS)

    async def _await_messages(self, caller: Caller, request: AwaitMessages) -> bool:
        """Answer another broker, once there are messages. Raises RequestError if none of them can be leased now."""
        subscription = self._subscriptions.identified(request.subscription, request.subscription_id)
        await self._subscribed.ready(subscription)
        answers = [partition.lease_refusal() for _, partition in self._own.ready(subscription)]
        refusals = [answer for answer in answers if answer is not None]
        if refusals and len(refusals) == len(answers):
            raise refusals[0]
        if self._own.ready(subscription):
            return True
        return await emitted(self._watched.setdefault(subscription.id, Signal()), self._clock, request.wait_ms)

    def give_back(self, caller: Caller, name: str, leases: Sequence[LeasedMessage]) -> None:
        """End leases that reached no client: their messages count as never delivered. Those of a deleted subscription
        have ended.
        """
        with suppress(RequestError):
            self._remote_leases.give_back(caller, self._subscriptions.existing(name), leases)

    def _changed(self, partition: QueuePartition) -> None:
        """Wake the first waiting request of each subscription that has messages in this partition."""
        changed = partition.machine.agenda.take_changed()
        topic = partition.messages.identity.topic
        waiting = self._waiters.subscriptions(topic)
        for subscription in changed if waiting or self._watched else ():
            if (subscription in waiting or subscription in self._watched) and _has_messages(partition, subscription):
                self._waiters.wake(topic, subscription)
                watched = self._watched.pop(subscription, None)
                if watched is not None:
                    watched.emit(None)

    def _subscription_removed(self, subscription: Subscription) -> None:
        kind, deleted = ErrorKind.UNKNOWN_SUBSCRIPTION, f"subscription '{subscription.name}'"
        if subscription.topic_id not in self._metadata.image.names_by_id:
            kind, deleted = ErrorKind.UNKNOWN_TOPIC, f"topic '{subscription.topic}'"
        self._own.forget(subscription)
        self._watched.pop(subscription.id, None)
        self._waiters.fail(subscription, RequestError(kind, f"{deleted} was deleted"))


def turn_of(number: int, others: Sequence[NodeId]) -> tuple[Sequence[NodeId], bool]:
    """Return the order in which a request asks other brokers, by its number, and whether it asks them first.

    Each of them has its turn, among the requests that ask others first and among the rest.
    """
    round_number, are_first = number // _OTHERS_FIRST_EVERY, number % _OTHERS_FIRST_EVERY == 0
    first = (round_number if are_first else number - round_number) % len(others)
    return [*others[first:], *others[:first]], are_first


def _has_messages(partition: QueuePartition, subscription: UUID) -> bool:
    """Return whether a subscription could lease a message now."""
    queue = partition.machine.queue(subscription)
    return queue is not None and queue.has_messages
