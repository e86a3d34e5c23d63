"""The room of the coordinators, assembled: groups, transactions, queues, forwarders."""

from conveyor.broker.coordinators.forwarders import Forwarders
from conveyor.broker.coordinators.group_coordinators import GroupCoordinators
from conveyor.broker.coordinators.machine_services import MachineServices
from conveyor.broker.coordinators.participants import Participants
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.coordinators.transaction_coordinators import TransactionCoordinators
from conveyor.broker.coordinators.transactional_offsets import TransactionalOffsets
from conveyor.broker.markers.marker_writer import MarkerWriter, ResolvesTransactions
from conveyor.broker.metadata.cluster_view import ClusterView
from conveyor.broker.partitions.partitions import Partitions
from conveyor.broker.produce.broker_produce import Produce
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import OFFSETS_TOPIC, QUEUE_STATE
from conveyor.log.cache_share import CacheShare


class AllCoordinators:
    def __init__(
        self,
        services: Services,
        cluster: ClusterView,
        partitions: Partitions,
        calls: LeaderCalls,
        topics: Topics,
        produce: Produce,
    ) -> None:
        table = partitions.table
        self.queue_cache = CacheShare(services.settings.broker.queue_cache_bytes)
        of_machines = MachineServices(
            common=services,
            cache=self.queue_cache,
            room=partitions.disk_room,
            retention=partitions.retention,
        )
        self.transactions = TransactionCoordinators(services, table, topics, calls, cluster.producer_ids)
        self.groups = GroupCoordinators(services, table, topics, cluster.dynamic_settings)
        self.forwarders = Forwarders(of_machines, table, cluster.producer_ids)
        partitions.disk_watch.resumed.listen(self.forwarders.resume)
        self.queues = QueuePartitions(of_machines, table, topics, cluster.subscriptions)
        partitions.reconciler.leadership.listen(self.groups, self.transactions, self.forwarders, self.queues)
        for coordinators in (self.transactions, self.groups, self.forwarders, self.queues):
            services.serving.callback(coordinators.stop)
        machines: dict[str, ResolvesTransactions] = {OFFSETS_TOPIC: self.groups, QUEUE_STATE: self.queues}
        MarkerWriter(table, produce.verifications, produce.publisher, calls.handlers, machines)
        self.participants = Participants(produce.verifications)
        self.transactional_offsets = TransactionalOffsets(self.groups, self.transactions, self.participants)
