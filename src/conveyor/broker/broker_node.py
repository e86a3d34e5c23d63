"""One broker, assembled from its parts. Doors use these parts and nothing below them."""

import asyncio
import logging
from itertools import count

from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.clients.quota_enforcement import Quotas
from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.coordinators.forwarders import Forwarders
from conveyor.broker.coordinators.group_coordinators import GroupCoordinators
from conveyor.broker.coordinators.machine_services import MachineServices, Turns
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.coordinators.schedules import Schedules
from conveyor.broker.fetch.fetch_sessions import FetchSessions
from conveyor.broker.fetch.fetcher import Fetcher
from conveyor.broker.fetch.message_browser import MessageBrowser
from conveyor.broker.fetch.replica_reads import ReplicaReads
from conveyor.broker.liveness.broker_liveness import BrokerLiveness
from conveyor.broker.metadata.dynamic_settings import DynamicSettings
from conveyor.broker.metadata.log_levels import LogLevels
from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.metadata.producer_ids import ProducerIds
from conveyor.broker.metadata.store_patience import until_answered
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.commit_checks import CommitChecks
from conveyor.broker.partitions.compaction import Compaction
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.disk_watch import DiskWatch
from conveyor.broker.partitions.flusher import Flusher
from conveyor.broker.partitions.log_opening import make_log_opening
from conveyor.broker.partitions.log_task_runner import LogTaskRunner
from conveyor.broker.partitions.loop_tick import LoopTick
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.partitions.reconciler import Reconciler
from conveyor.broker.partitions.retention import Retention
from conveyor.broker.produce.leader_publisher import LeaderPublisher
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.queues.queue_verbs import QueueVerbs
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.replicas.flush_stalls import FlushStalls
from conveyor.broker.replicas.replica_repair import ReplicaRepair
from conveyor.broker.replicas.replication_probe import ReplicationMeasures
from conveyor.broker.replicas.replicator import Replicator
from conveyor.broker.services import Services
from conveyor.broker.slices import Slices
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.cluster_operations import ClusterOperations
from conveyor.broker.topics.new_leaders import NewLeaders
from conveyor.broker.topics.partition_leader import PartitionLeaders
from conveyor.broker.topics.shown_brokers import ShownBrokers
from conveyor.broker.topics.topic_offsets import TopicOffsets
from conveyor.broker.topics.topics import Topics
from conveyor.broker.transaction_parts import make_transaction_requests, make_transactions
from conveyor.cluster.image import QUEUE_STATE, BrokerImage
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.request_budget import RequestBudget
from conveyor.log.cache_share import CacheShare
from conveyor.log.log_probe import LogProbe
from conveyor.replication.partition import Partition
from conveyor.replication.replica import OwnerCalls
from conveyor.settings.tree import Settings

log = logging.getLogger(__name__)

_HOUSEKEEPING_MS = 60_000


class BrokerNode:
    """See the module's docstring. Call `start` before any other method; `stop` flushes everything."""

    def __init__(self, settings: Settings, ports: BrokerPorts) -> None:
        loop = asyncio.get_running_loop()
        self.metadata = Metadata(
            ports.store, ports.metadata_threads or ports.threads, ports.new_id, ports.clock, ports.failed
        )
        self.tasks = Tasks(ports.failed)
        self._services = Services(
            settings=settings, clock=ports.clock, threads=ports.threads, tasks=self.tasks, metadata=self.metadata,
            new_id=ports.new_id,
        )  # fmt: skip
        self.dynamic_settings = DynamicSettings(self._services)
        self.log_levels = LogLevels(self._services)
        self.clock = ports.clock
        self.log_probe = LogProbe()
        self.loop_tick = LoopTick(loop, ports.failed)
        self.slices = Slices(loop, ports.threads, ports.failed)
        self.flusher = Flusher(loop, ports.threads, settings.broker.flush_threads)
        self.room = DiskRoom(ports.disk, settings.disk)
        self.partitions = PartitionTable(self.metadata, self.room)
        self.subscriptions = Subscriptions(self._services)
        self._make_fetch(ports)
        self.producer_ids = ProducerIds(self.metadata)
        self.connection_numbers = count(1)
        self.request_budget = RequestBudget(settings.network.max_buffered_bytes)
        self.quotas = Quotas(self._services)
        self._logs = make_log_opening(self._services, self.partitions, ports, self.log_probe)
        self._log_tasks = LogTaskRunner(self._services, self._logs.checkpoint)
        self._commit_checks = CommitChecks(ports.clock, self.partitions)
        self.reconciler = self._make_reconciler(ports)
        self._links = ClusterLinks(self._services, ports.peers)
        self._replicator = self._make_replicator(ports)
        self._leader_calls = LeaderCalls(self._services, self._links)
        self._make_topics(ports)
        self._make_housekeeping(ports)
        self._make_coordinators()
        self.message_publisher = MessagePublisher(
            metadata=self.metadata,
            topics=self.topics,
            partitions=self.partitions,
            publisher=LeaderPublisher(self._leader_calls, self.publisher),
            clock=ports.clock,
        )
        self.message_browser = MessageBrowser(
            self.topics, self.partitions, self._leader_calls, ports.clock, ports.threads
        )
        self._make_queues()
        self.transaction_requests = make_transaction_requests(
            self._services, self.transactions, self.message_publisher, self.settlements, self._leader_calls
        )
        self.schedules = Schedules(self._services, self.topics, self.message_publisher, self.message_browser)
        self.liveness = BrokerLiveness(
            self._services, self.reconciler, self._logs, self._links, self._leader_calls, ports
        )
        self._ports = ports
        self._housekeeping = Alarm(ports.clock, self._housekeep)

    @property
    def settings(self) -> Settings:
        """The settings in force; they change at run time."""
        return self._services.settings

    def replication_measures(self) -> ReplicationMeasures:
        """Return the numbers of the replication between this broker and others."""
        return ReplicationMeasures() if self._replicator is None else self._replicator.measures()

    async def start(self, host: str, port: int) -> None:
        """Recover the data on the disk and join the cluster under these addresses; see `BrokerImage`.

        Raises StorageFailure; StartupError if the data directory belongs to another broker.
        """
        await asyncio.get_running_loop().run_in_executor(self._ports.threads, self.room.measure)
        broker = BrokerImage(
            node_id=self._services.me,
            host=host,
            port=port,
            rack=self.settings.broker.rack or None,
            peer_host=self._links.host,
            peer_port=self._links.port,
            http_url=self.settings.network.http_advertised,
        )
        await self.metadata.load(broker)
        self._ports.joined(self.metadata.image.cluster_id)
        await until_answered(self.dynamic_settings.agree, self.clock)
        await until_answered(lambda: self._links.open(self._ports.store), self.clock)
        await self.liveness.membership.prepare()
        await self.topics.start()
        await self.liveness.membership.join(broker)
        self.liveness.isolation.start()
        self.queue_partitions.start()
        self.schedules.start()
        self._housekeep()
        if self._replicator is not None:
            self._replicator.start()
        self.retention.start()
        self.compaction.start()
        self.disk_watch.start()

    @property
    def is_disk_stalled(self) -> bool:
        """Whether the disk has not finished a flush for `disk.stall_timeout_ms`. Only a broker of a cluster checks."""
        return self._replicator is not None and self._replicator.is_disk_stalled

    async def finish_requests(self) -> None:
        """Answer all waiting requests: with the available records, with an error, or after the last flush.

        Other brokers lead this broker's partitions first, where they can.
        """
        self.liveness.isolation.stop()
        await self.liveness.membership.hand_over()
        self._stop_background_work()
        self.fetcher.finish_all()
        await self.slices.stop()
        self.fetcher.finish_all()
        self.schedules.stop()
        self.leases.stop()
        self.subscription_statistics.stop()
        self.queue_partitions.stop()
        self.forwarders.stop()
        self.groups.stop()
        self.transactions.stop()
        self._leader_calls.stop()
        await self.publisher.drain()
        await self.loop_tick.end()
        await self.flusher.drain()
        await self.loop_tick.end()
        if self._replicator is not None:
            self._replicator.stop()
        self.reconciler.stop()
        await self.tasks.stop()

    async def stop(self) -> None:
        """Flush and seal every log. All acknowledged records are on the disk when this returns."""
        self._housekeeping.cancel()
        self._commit_checks.stop()
        self._stop_background_work()
        await self.liveness.membership.leave()
        await self.metadata.close()
        self.log_levels.reset()

    def _stop_background_work(self) -> None:
        self.disk_watch.stop()
        self.retention.stop()
        self.compaction.stop()

    def _make_reconciler(self, ports: BrokerPorts) -> Reconciler:
        calls = OwnerCalls[Partition](
            wants_write=self.loop_tick.add_write,
            wants_flush=self.flusher.want,
            went_offline=self.partitions.went_offline.emit,
            wants_checks=self._commit_checks.add,
            holds_lease=self.metadata.session.holds_lease,
        )
        return Reconciler(self._services, self.partitions, self._logs, self._log_tasks, calls)

    def _make_topics(self, ports: BrokerPorts) -> None:
        """Create the parts that describe and change topics and the cluster."""
        self.topics = Topics(self._services, self.reconciler, NewLeaders(self._leader_calls))
        self.topic_offsets = TopicOffsets(self._leader_calls, self.partitions, ports.clock)
        self.partition_leaders = PartitionLeaders(self._services, self.partitions)
        self.shown_brokers = ShownBrokers(self._services)
        self.cluster_operations = ClusterOperations(self._services, self.partitions)

    def _make_fetch(self, ports: BrokerPorts) -> None:
        network = self.settings.network
        self.fetcher = Fetcher(
            self.partitions, ports.clock, self.loop_tick, network.max_fetch_bytes, self.slices, self.tasks
        )
        self.replica_reads = ReplicaReads(self._services)
        most, items = network.max_fetch_sessions, network.max_request_items
        self.fetch_sessions = FetchSessions(ports.new_id, max_fetch_sessions=most, max_session_partitions=items)

    def _make_replicator(self, ports: BrokerPorts) -> Replicator | None:
        if not self._links.are_possible:
            return None
        repair = ReplicaRepair(
            self._services,
            self.partitions,
            self.reconciler,
            self._logs.directories,
            FlushStalls(self.flusher, ports.clock),
        )
        return Replicator(self._services, self.reconciler, self._links, self.loop_tick, self._log_tasks, repair)

    def _make_housekeeping(self, ports: BrokerPorts) -> None:
        self.retention = Retention(self._services, self.partitions, self.room, self.subscriptions)
        self.disk_watch = DiskWatch(self._services, self.partitions, self.room, self.reconciler, self.retention)
        self.compaction = Compaction(self._services, self.partitions, self.room, ports.compactor)

    def _make_coordinators(self) -> None:
        """Create the coordinators of groups, transactions and delayed topics, and the publisher, which asks them."""
        self.queue_cache = CacheShare(self.settings.broker.queue_cache_bytes)
        self._machine_services = MachineServices(
            common=self._services,
            cache=self.queue_cache,
            room=self.room,
            retention=self.retention,
            turns=Turns(self._services),
        )
        self.forwarders = Forwarders(self._machine_services, self.partitions, self.producer_ids)
        self.disk_watch.resumed.listen(self.forwarders.resume)
        self.groups = GroupCoordinators(self._services, self.partitions, self.topics, self.dynamic_settings)
        self._transaction_parts = parts = make_transactions(
            self._services, self.partitions, self.topics, self._leader_calls, self.producer_ids, self.groups
        )
        self.transactions, self.publisher, self.transactional_offsets, *_ = parts

    def _make_queues(self) -> None:
        """Create the queues, and the parts that serve queue clients, one for each verb."""
        self.queue_partitions = QueuePartitions(
            self._machine_services, self.partitions, self.topics, self.subscriptions
        )
        self._transaction_parts.markers.use(QUEUE_STATE, self.queue_partitions)
        self.reconciler.leadership.listen(self.groups, self.transactions, self.forwarders, self.queue_partitions)
        verbs = QueueVerbs(
            services=self._services,
            topics=self.topics,
            table=self.partitions,
            subscriptions=self.subscriptions,
            partitions=self.queue_partitions,
            forwarders=self.forwarders,
            leaders=self._leader_calls,
            browser=self.message_browser,
            publisher=self.message_publisher,
            participants=self._transaction_parts.participants,
        )
        self.subscribed_partitions = verbs.subscribed
        self.subscription_lifecycle = verbs.lifecycle
        self.leases = verbs.leases
        self.settlements = verbs.settlements
        self.subscription_statistics = verbs.statistics
        self.delayed_messages = verbs.delayed_messages
        self.message_inspection = verbs.inspection
        self.dead_letters = verbs.dead_letters
        self.dead_letter_redrive = verbs.dead_letter_redrive

    def _housekeep(self) -> None:
        """Remove the state of producers that have been inactive for long."""
        for partition in self.partitions:
            partition.log.producers.expire(self.clock.now_ms())
        self._housekeeping.after(_HOUSEKEEPING_MS)
