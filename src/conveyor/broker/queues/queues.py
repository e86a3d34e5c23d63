"""The room of queue clients, assembled: one part for each verb."""

from conveyor.broker.coordinators.all_coordinators import AllCoordinators
from conveyor.broker.fetch.fetch import Fetch
from conveyor.broker.metadata.cluster_view import ClusterView
from conveyor.broker.partitions.partitions import Partitions
from conveyor.broker.produce.broker_produce import Produce
from conveyor.broker.queues.dead_letters.dead_letter_reader import DeadLetterReader
from conveyor.broker.queues.dead_letters.dead_letter_redrive import DeadLetterRedrive
from conveyor.broker.queues.dead_letters.dead_letter_writer import DeadLetterWriter
from conveyor.broker.queues.dead_letters.dead_letters import DeadLetters
from conveyor.broker.queues.dead_letters.dead_queue_answers import DeadQueueAnswers
from conveyor.broker.queues.delayed_messages import DelayedMessages
from conveyor.broker.queues.leasing.leases import Leases
from conveyor.broker.queues.message_inspection import MessageInspection
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.queues.settlements import Settlements
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.broker.queues.subscription_lifecycle import SubscriptionLifecycle
from conveyor.broker.queues.subscription_statistics import SubscriptionStatistics
from conveyor.broker.queues.transactional_acks import TransactionalAcks
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics


class Queues:
    def __init__(
        self,
        *,
        services: Services,
        cluster: ClusterView,
        partitions: Partitions,
        topics: Topics,
        calls: LeaderCalls,
        fetch: Fetch,
        produce: Produce,
        coordinators: AllCoordinators,
    ) -> None:
        clock, subscriptions, queues = services.clock, cluster.subscriptions, coordinators.queues
        self.subscribed_partitions = subscribed = SubscribedPartitions(services, topics, subscriptions, queues)
        queue_calls = QueueCalls(
            services,
            leaders=calls,
            topics=topics,
            table=partitions.table,
            subscriptions=subscriptions,
            partitions=queues,
        )
        self.lifecycle = SubscriptionLifecycle(
            topics=topics, subscriptions=subscriptions, partitions=queues, subscribed=subscribed, calls=queue_calls
        )
        self.leases = Leases(services, subscriptions, queues, subscribed, queue_calls, calls)
        services.serving.callback(self.leases.stop)
        transactional_acks = TransactionalAcks(queue_calls, coordinators.participants, calls)
        self.settlements = Settlements(services, subscriptions, subscribed, queue_calls, transactional_acks)
        self.statistics = SubscriptionStatistics(
            services, subscriptions=subscriptions, partitions=queues, subscribed=subscribed, leaders=calls
        )
        services.serving.callback(self.statistics.stop)
        self.delayed_messages = DelayedMessages(topics, coordinators.forwarders, queue_calls, calls)
        self.inspection = MessageInspection(services, subscriptions, subscribed, queue_calls, calls)
        DeadLetterWriter(services, topics, subscriptions, queues, produce.messages)
        DeadQueueAnswers(services, subscriptions, queue_calls, calls)
        reader = DeadLetterReader(services, subscriptions, calls, fetch.browser)
        self.dead_letters = DeadLetters(subscriptions, reader)
        self.dead_letter_redrive = DeadLetterRedrive(
            subscriptions=subscriptions, reader=reader, calls=queue_calls, publisher=produce.messages, clock=clock
        )
