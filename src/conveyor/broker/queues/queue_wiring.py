"""Puts the parts together that speak in messages: publishing one by one, queues, dead letters, schedules."""

from dataclasses import dataclass

from conveyor.broker.broker_node import Broker, BrokerPorts
from conveyor.broker.hosts.queue_partition import QueuePartition
from conveyor.broker.hosts.queue_partitions import QueuePartitions
from conveyor.broker.hosts.schedules import Schedules
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.produce.message_publisher import Messages
from conveyor.broker.queues.dead_letter_writer import Burials
from conveyor.broker.queues.dead_letters import DeadLetters
from conveyor.broker.queues.leases import LeaseRequests
from conveyor.broker.queues.queues import Queues
from conveyor.queues.delivery.memory_budget import MemoryBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """The parts."""

    messages: Messages
    queues: Queues
    dead_letters: DeadLetters
    schedules: Schedules


def make_queueing(broker: Broker, ports: BrokerPorts) -> Queueing:
    """Those of one broker."""
    topics, tasks, clock = broker.topics, broker.tasks, ports.clock
    messages = Messages(
        topics=topics,
        partitions=broker.partitions,
        publisher=broker.publisher,
        inboxes=broker.inboxes,
        clock=clock,
        threads=ports.threads,
    )
    subscriptions = Subscriptions(ports.store, topics, ports.new_id)
    broker.retention.hold(subscriptions.topics)
    burials = Burials(topics=topics, subscriptions=subscriptions, messages=messages, clock=clock, tasks=tasks)
    requests = LeaseRequests(subscriptions, lambda topic_id: partitions.of(topic_id), clock)

    def changed(partition: QueuePartition) -> None:
        requests.changed(partition)
        burials.changed(partition)

    partitions = QueuePartitions(
        topics=topics,
        partitions=broker.partitions,
        subscriptions=subscriptions,
        clock=clock,
        threads=ports.threads,
        retention=broker.retention,
        tasks=tasks,
        cache=broker.queue_cache,
        acks=MemoryBudget(broker.settings.broker.remembered_acks),
        new_id=ports.new_id,
        changed=changed,
    )
    return Queueing(
        messages=messages,
        queues=Queues(
            topics=topics,
            subscriptions=subscriptions,
            partitions=partitions,
            inboxes=broker.inboxes,
            requests=requests,
            clock=clock,
            tasks=tasks,
        ),
        dead_letters=DeadLetters(
            topics=topics, subscriptions=subscriptions, partitions=partitions, messages=messages, clock=clock
        ),
        schedules=Schedules(store=ports.store, messages=messages, topics=topics, clock=clock, tasks=tasks),
    )
