"""Assembles the parts of a broker that serve transactions."""

from typing import NamedTuple

from conveyor.broker.coordinators.group_coordinators import GroupCoordinators
from conveyor.broker.coordinators.participants import Participants
from conveyor.broker.coordinators.transaction_coordinators import TransactionCoordinators
from conveyor.broker.coordinators.transactional_offsets import TransactionalOffsets
from conveyor.broker.metadata.producer_ids import ProducerIds
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.produce.publish import Publisher
from conveyor.broker.produce.verification import Verifications
from conveyor.broker.queues.settlements import Settlements
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.broker.transaction_requests.transaction_requests import TransactionRequests
from conveyor.broker.transaction_requests.transaction_run import TransactionRunner
from conveyor.broker.transactions.marker_writer import MarkerWriter
from conveyor.cluster.image import OFFSETS_TOPIC

_REQUEST_TIMEOUT_MS = 10_000
"""The timeout of a transaction that lives for one request. After a crash, readers of its partitions wait for it."""


class TransactionParts(NamedTuple):
    """What serves transactions. participants, markers: for the machines that take part."""

    transactions: TransactionCoordinators
    publisher: Publisher
    offsets: TransactionalOffsets
    participants: Participants
    markers: MarkerWriter


def make_transactions(
    services: Services, partitions: PartitionTable, topics: Topics, leaders: LeaderCalls, producer_ids: ProducerIds,
    groups: GroupCoordinators,
) -> TransactionParts:  # fmt: skip
    """Return the coordinators, and what takes part in transactions. Markers are written for all brokers."""
    transactions = TransactionCoordinators(services, partitions, topics, leaders, producer_ids)
    verifications = Verifications(services, leaders)
    publisher = Publisher(services, partitions, verifications)
    markers = MarkerWriter(partitions, verifications, publisher, leaders.handlers)
    markers.use(OFFSETS_TOPIC, groups)
    participants = Participants(verifications)
    offsets = TransactionalOffsets(groups, transactions, participants)
    return TransactionParts(transactions, publisher, offsets, participants, markers)


def make_transaction_requests(
    services: Services, transactions: TransactionCoordinators, publisher: MessagePublisher, settlements: Settlements,
    leaders: LeaderCalls,
) -> TransactionRequests:  # fmt: skip
    """Return what executes the transactions of clients without a producer."""
    timeout_ms = min(_REQUEST_TIMEOUT_MS, services.settings.transactions.max_timeout_ms)
    runner = TransactionRunner(transactions, publisher, settlements, services.clock, timeout_ms)
    return TransactionRequests(services, transactions, runner, leaders)
