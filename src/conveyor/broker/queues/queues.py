"""The room of queue clients, assembled: one part for each verb."""

from conveyor.broker.coordinators.all_coordinators import AllCoordinators
from conveyor.broker.fetch.fetch import Fetch
from conveyor.broker.produce.broker_produce import Produce
from conveyor.broker.queues.dead_letters.dead_letters import DeadLetters
from conveyor.broker.queues.delayed_messages import DelayedMessages
from conveyor.broker.queues.leasing.leases import Leases
from conveyor.broker.queues.message_inspection import MessageInspection
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.queues.scheduled_messages import ScheduledMessages
from conveyor.broker.queues.settlements import Settlements
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.broker.queues.subscription_lifecycle import SubscriptionLifecycle
from conveyor.broker.queues.subscription_statistics import SubscriptionStatistics
from conveyor.broker.queues.transactional_acks import TransactionalAcks
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics


class Queues:
    def __init__(
        self,
        services: Services,
        topics: Topics,
        calls: QueueCalls,
        coordinators: AllCoordinators,
        fetch: Fetch,
        produce: Produce,
    ) -> None:
        subscriptions, queues, leaders = calls.subscriptions, coordinators.queues, calls.leaders
        self.subscribed_partitions = subscribed = SubscribedPartitions(services, topics, subscriptions, queues)
        self.lifecycle = SubscriptionLifecycle(
            services, topics=topics, subscriptions=subscriptions, partitions=queues, subscribed=subscribed, calls=calls
        )
        self.leases = Leases(services, subscriptions, queues, subscribed, calls, leaders)
        services.serving.callback(self.leases.stop)
        transactional_acks = TransactionalAcks(calls, coordinators.participants, leaders)
        self.settlements = Settlements(services, subscriptions, subscribed, calls, transactional_acks)
        self.statistics = SubscriptionStatistics(
            services, subscriptions=subscriptions, partitions=queues, subscribed=subscribed, leaders=leaders
        )
        services.serving.callback(self.statistics.stop)
        self.delayed_messages = DelayedMessages(topics, coordinators.forwarders, calls, leaders)
        self.inspection = MessageInspection(services, subscriptions, subscribed, calls, leaders)
        self.scheduled = ScheduledMessages(services, subscribed, calls, coordinators.forwarders)
        self.dead_letters = DeadLetters(services, topics, calls, fetch, produce)
