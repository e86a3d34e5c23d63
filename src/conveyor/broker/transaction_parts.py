"""Assembles the parts of a broker that serve transactions."""

from typing import NamedTuple

from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.handles.handle_transactions import HandleTransactions
from conveyor.broker.handles.transaction_handle import HandleKey
from conveyor.broker.hosts.group_coordinators import Groups
from conveyor.broker.hosts.inboxes import Inboxes
from conveyor.broker.hosts.participants import Participants
from conveyor.broker.hosts.transaction_calls import TransactionCalls
from conveyor.broker.hosts.transaction_coordinators import Transactions
from conveyor.broker.hosts.transactional_offsets import TransactionalOffsets
from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.metadata.producer_ids import ProducerIds
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.inspected_appends import InspectedAppends
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.produce.publish import Publisher
from conveyor.broker.queues.settlements import Settlements
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.broker.transactions.marker_writer import MarkerWriter
from conveyor.broker.transactions.transactional_publisher import TransactionalPublisher
from conveyor.broker.transactions.verifications import Verifications
from conveyor.cluster.image import OFFSETS_TOPIC
from conveyor.kernel.ids import NodeId
from conveyor.settings.transactions_settings import TransactionsSettings
from conveyor.settings.tree import Settings


class TransactionParts(NamedTuple):
    """What serves transactions. participants, markers: for the machines that take part."""

    transactions: Transactions
    publisher: TransactionalPublisher
    offsets: TransactionalOffsets
    participants: Participants
    markers: MarkerWriter


def make_transactions(
    *, metadata: Metadata, topics: Topics, partitions: PartitionTable, settings: TransactionsSettings,
    leaders: LeaderCalls, producer_ids: ProducerIds, publisher: Publisher, inspected_appends: InspectedAppends,
    groups: Groups, inboxes: Inboxes, ports: BrokerPorts, tasks: Tasks,
) -> TransactionParts:  # fmt: skip
    """Return the coordinators, and what takes part in transactions. Markers are written for all brokers."""
    verifications = Verifications()
    markers = MarkerWriter(
        partitions=partitions,
        verifications=verifications,
        inspected_appends=inspected_appends,
        append_beside_inbox=inboxes.append_to_topic,
        clock=ports.clock,
        handlers=leaders.handlers,
    )
    markers.use(OFFSETS_TOPIC, groups.append_marker)
    transactions = Transactions(
        metadata=metadata,
        topics=topics,
        partitions=partitions,
        settings=settings,
        leaders=leaders,
        producer_ids=producer_ids,
        clock=ports.clock,
        threads=ports.threads,
        tasks=tasks,
    )
    transactional_publisher = TransactionalPublisher(
        publisher=publisher,
        inspected_appends=inspected_appends,
        verify=transactions.verify,
        verifications=verifications,
        clock=ports.clock,
        tasks=tasks,
    )
    participants = Participants(transactions, verifications)
    offsets = TransactionalOffsets(groups, transactions, participants)
    return TransactionParts(transactions, transactional_publisher, offsets, participants, markers)


def make_handle_transactions(
    transactions: Transactions, publisher: MessagePublisher, settlements: Settlements, leaders: LeaderCalls,
    settings: Settings, ports: BrokerPorts, tasks: Tasks,
) -> HandleTransactions:  # fmt: skip
    """Return what serves the transactions of clients without a producer."""
    return HandleTransactions(
        node_id=NodeId(settings.broker.node_id),
        start_id=ports.new_id(),
        key=HandleKey(ports.store, ports.new_id),
        calls=TransactionCalls(transactions, leaders),
        leaders=leaders,
        publisher=publisher,
        settlements=settlements,
        clock=ports.clock,
        tasks=tasks,
        max_producers=settings.producers.max_producers_per_partition,
    )
