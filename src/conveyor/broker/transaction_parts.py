"""Assembles the parts of a broker that serve transactions."""

from typing import NamedTuple

from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.coordinators.group_coordinators import Groups
from conveyor.broker.coordinators.participants import Participants
from conveyor.broker.coordinators.transaction_coordinators import Transactions
from conveyor.broker.coordinators.transactional_offsets import TransactionalOffsets
from conveyor.broker.metadata.producer_ids import ProducerIds
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.produce.publish import Publisher
from conveyor.broker.produce.verification import Verifications
from conveyor.broker.queues.settlements import Settlements
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.broker.transaction_requests.transaction_requests import TransactionRequests
from conveyor.broker.transaction_requests.transaction_run import TransactionRunner
from conveyor.broker.transactions.marker_writer import MarkerWriter
from conveyor.cluster.image import OFFSETS_TOPIC
from conveyor.settings.tree import Settings

_REQUEST_TIMEOUT_MS = 10_000
"""The timeout of a transaction that lives for one request. After a crash, readers of its partitions wait for it."""


class TransactionParts(NamedTuple):
    """What serves transactions. participants, markers: for the machines that take part."""

    transactions: Transactions
    publisher: Publisher
    offsets: TransactionalOffsets
    participants: Participants
    markers: MarkerWriter


def make_transactions(
    services: Services, topics: Topics, partitions: PartitionTable, leaders: LeaderCalls, producer_ids: ProducerIds,
    groups: Groups,
) -> TransactionParts:  # fmt: skip
    """Return the coordinators, and what takes part in transactions. Markers are written for all brokers."""
    transactions = Transactions(
        metadata=services.metadata,
        topics=topics,
        partitions=partitions,
        settings=services.settings.transactions,
        leaders=leaders,
        producer_ids=producer_ids,
        clock=services.clock,
        threads=services.threads,
        tasks=services.tasks,
    )
    verifications = Verifications(transactions)
    publisher = Publisher(services, partitions, verifications)
    markers = MarkerWriter(partitions, verifications, publisher, leaders.handlers)
    markers.use(OFFSETS_TOPIC, groups.append_marker)
    participants = Participants(verifications)
    offsets = TransactionalOffsets(groups, transactions, participants)
    return TransactionParts(transactions, publisher, offsets, participants, markers)


def make_transaction_requests(
    transactions: Transactions, publisher: MessagePublisher, settlements: Settlements, leaders: LeaderCalls,
    settings: Settings, ports: BrokerPorts, tasks: Tasks,
) -> TransactionRequests:  # fmt: skip
    """Return what executes the transactions of clients without a producer."""
    timeout_ms = min(_REQUEST_TIMEOUT_MS, settings.transactions.max_timeout_ms)
    runner = TransactionRunner(transactions, publisher, settlements, ports.clock, timeout_ms)
    max_producers = settings.producers.max_producers_per_partition
    return TransactionRequests(transactions, runner, leaders, tasks, max_producers)
