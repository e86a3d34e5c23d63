"""Statistics of subscriptions: messages by state, acknowledgements, retries and their rates."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

import msgspec

from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.broker.queues.subscription_rates import SubscriptionRates
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.kernel.access.caller import Caller
from conveyor.queues.delivery.ack_delays import AckDelays, total_delays
from conveyor.queues.delivery.inspection import count_messages, find_oldest_ms
from conveyor.queues.queue_commands import SubscriptionCounts, SubscriptionProbe
from conveyor.queues.subscription.policy import Subscription

_PARTITIONS_AT_ONCE = 20
"""The most partitions in which one turn of the event loop looks for the oldest message."""


class SubscriptionStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a subscription: messages by state, and counts since the broker started.

    depth: messages that could be leased now. pending: acknowledged in open transactions. delayed: messages that are not
    due yet or wait for their next delivery.
    unsettled: all messages that are not settled. acked, retried: counts. ack_rate, retry_rate: per second, over the
    last minute. ack_delays: from publish to ack.
    """

    depth: int
    in_flight: int
    pending: int
    delayed: int
    dead: int
    unsettled: int
    oldest_age_ms: int | None
    acked: int
    retried: int
    ack_rate: float
    retry_rate: float
    filter_errors: int
    ack_delays: AckDelays


class StatsHere(msgspec.Struct, frozen=True, array_like=True):
    """Return the statistics of a subscription in the partitions that the asked broker leads."""

    subscription: str
    subscription_id: UUID


class LocalStats(msgspec.Struct, frozen=True, array_like=True):
    """The statistics of a subscription on one broker; see `SubscriptionStats`. oldest_ms: the timestamp of the oldest
    unsettled message.
    """

    counts: SubscriptionCounts
    acked: int
    retried: int
    filter_errors: int
    ack_rate: float
    retry_rate: float
    ack_delays: AckDelays
    oldest_ms: int | None


_STATS: Call[StatsHere, LocalStats] = Call("queue.stats", StatsHere, LocalStats, is_repeatable=True)


class SubscriptionStatistics:
    def __init__(
        self,
        services: Services,
        *,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
        subscribed: SubscribedPartitions,
        leaders: LeaderCalls,
    ) -> None:
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._subscribed = subscribed
        self._clock = services.clock
        self._slices = services.slices
        self._leaders = leaders
        leaders.handlers.register(_STATS, self._stats_here)
        self._rates = SubscriptionRates(services.clock, partitions)
        subscriptions.added.listen(lambda subscription: self._rates.follow(subscription.id))
        subscriptions.removed.listen(lambda subscription: self._rates.forget(subscription.id))

    def stop(self) -> None:
        """Sample no more rates."""
        self._rates.stop()

    async def stats(self, caller: Caller, name: str) -> SubscriptionStats:
        """Return the statistics of one subscription on all brokers. Raises RequestError."""
        subscription = self._subscriptions.existing(name)
        request = StatsHere(subscription.name, subscription.id)
        parts = [
            await self._stats_here(caller, request),
            *await self._leaders.ask_others(caller, _STATS, subscription.topic, request),
        ]
        counts, oldest_ms = _sum([part.counts for part in parts]), _least([part.oldest_ms for part in parts])
        return SubscriptionStats(
            depth=counts.available,
            in_flight=counts.in_flight,
            pending=counts.pending,
            delayed=counts.withheld,
            dead=counts.dead,
            unsettled=counts.unsettled,
            oldest_age_ms=None if oldest_ms is None else max(0, self._clock.now_ms() - oldest_ms),
            acked=sum(part.acked for part in parts),
            retried=sum(part.retried for part in parts),
            ack_rate=sum(part.ack_rate for part in parts),
            retry_rate=sum(part.retry_rate for part in parts),
            filter_errors=sum(part.filter_errors for part in parts),
            ack_delays=total_delays([part.ack_delays for part in parts]),
        )

    async def _stats_here(self, caller: Caller, request: StatsHere) -> LocalStats:
        subscription = self._subscriptions.identified(request.subscription, request.subscription_id)
        partitions = await self._subscribed.committed(subscription)
        oldest_ms = await self._oldest_ms(subscription, partitions)
        probe = self._partitions.probe(subscription.id)
        ack_rate, retry_rate = self._rates.measure(subscription.id)
        return LocalStats(
            counts=_total(subscription, partitions),
            acked=probe.acknowledged,
            retried=probe.retried + probe.expired,
            filter_errors=probe.filter_errors,
            ack_rate=ack_rate,
            retry_rate=retry_rate,
            ack_delays=probe.ack_delays,
            oldest_ms=oldest_ms,
        )

    async def _oldest_ms(self, subscription: Subscription, partitions: Sequence[QueuePartition]) -> int | None:
        found: list[int | None] = []
        for number, at in enumerate(partitions, 1):
            queue = at.machine.queue(subscription.id)
            if queue is not None:
                found.append(await at.read(partial(find_oldest_ms, queue, at.source, at.stable_offset)))
            if number % _PARTITIONS_AT_ONCE == 0:
                await self._slices.turn()
        return _least(found)

    def measures(self) -> list[tuple[Subscription, SubscriptionCounts, SubscriptionProbe]]:
        """Return the counts and counters of every subscription on this broker.

        Partitions that are not loaded count nothing. No message is read.
        """
        return [
            (
                subscription,
                _total(subscription, self._partitions.of(subscription.topic_id)),
                self._partitions.probe(subscription.id),
            )
            for subscription in self._subscriptions.all()
        ]


def _total(subscription: Subscription, partitions: Sequence[QueuePartition]) -> SubscriptionCounts:
    queues = [(partition, partition.machine.queue(subscription.id)) for partition in partitions]
    return _sum(
        [
            count_messages(queue, at.source.log_start_offset, at.stable_offset)
            for at, queue in queues
            if queue is not None
        ]
    )


def _sum(counts: Sequence[SubscriptionCounts]) -> SubscriptionCounts:
    return SubscriptionCounts(
        unsettled=sum(count.unsettled for count in counts),
        available=sum(count.available for count in counts),
        in_flight=sum(count.in_flight for count in counts),
        pending=sum(count.pending for count in counts),
        withheld=sum(count.withheld for count in counts),
        dead=sum(count.dead for count in counts),
    )


def _least(times_ms: Sequence[int | None]) -> int | None:
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)
