"""The parts that serve queue clients, one for each verb, assembled for one broker."""

from conveyor.broker.coordinators.forwarders import Forwarders
from conveyor.broker.coordinators.participants import Participants
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.fetch.message_browser import MessageBrowser
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.queues.dead_letters.dead_letter_reader import DeadLetterReader
from conveyor.broker.queues.dead_letters.dead_letter_redrive import DeadLetterRedrive
from conveyor.broker.queues.dead_letters.dead_letter_writer import DeadLetterWriter
from conveyor.broker.queues.dead_letters.dead_letters import DeadLetters
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


class QueueVerbs:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        services: Services,
        topics: Topics,
        table: PartitionTable,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
        forwarders: Forwarders,
        leaders: LeaderCalls,
        browser: MessageBrowser,
        publisher: MessagePublisher,
        participants: Participants,
    ) -> None:
        clock = services.clock
        self.subscribed = subscribed = SubscribedPartitions(
            topics=topics, subscriptions=subscriptions, partitions=partitions, clock=clock
        )
        calls = QueueCalls(
            leaders=leaders, topics=topics, table=table, subscriptions=subscriptions, partitions=partitions, clock=clock
        )
        self.lifecycle = SubscriptionLifecycle(
            topics=topics, subscriptions=subscriptions, partitions=partitions, subscribed=subscribed, calls=calls
        )
        self.leases = Leases(services, subscriptions, partitions, subscribed, calls, leaders)
        self.settlements = Settlements(
            subscriptions, subscribed, calls, TransactionalAcks(calls, participants, leaders)
        )
        self.statistics = SubscriptionStatistics(
            subscriptions=subscriptions, partitions=partitions, subscribed=subscribed, leaders=leaders, clock=clock
        )
        self.delayed_messages = DelayedMessages(topics, forwarders, calls, leaders)
        self.inspection = MessageInspection(services, subscriptions, subscribed, browser, calls, leaders)
        DeadLetterWriter(services, topics, subscriptions, partitions, publisher)
        reader = DeadLetterReader(services, subscriptions, partitions, calls, leaders, browser)
        self.dead_letters = DeadLetters(subscriptions, reader)
        self.dead_letter_redrive = DeadLetterRedrive(
            subscriptions=subscriptions, reader=reader, calls=calls, publisher=publisher, clock=clock
        )
