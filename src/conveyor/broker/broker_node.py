"""One broker: its parts, put together. Doors use these parts and nothing below them."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

from conveyor.broker.clients.quota_enforcement import Quotas
from conveyor.broker.clients.request_budget import RequestBudget
from conveyor.broker.fetch.fetch_sessions import FetchSessions
from conveyor.broker.fetch.fetcher import Fetcher
from conveyor.broker.metadata.dynamic_settings import DynamicSettings
from conveyor.broker.metadata.log_levels import LogLevels
from conveyor.broker.metadata.producer_ids import ProducerIds
from conveyor.broker.partitions.compaction import Compaction, Compactor
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.disk_watch import DiskWatch
from conveyor.broker.partitions.flusher import Flusher
from conveyor.broker.partitions.loop_tick import Turn
from conveyor.broker.partitions.partition_table import PartitionServices, PartitionTable
from conveyor.broker.partitions.retention import Retention
from conveyor.broker.produce.deduplication import Deduplication
from conveyor.broker.produce.inspected_appends import Intake
from conveyor.broker.produce.publish import Publisher
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.cluster_id import new_cluster_id
from conveyor.cluster.dynamic_config import LayeredSettings
from conveyor.cluster.image import SCHEDULES_PATH, SUBSCRIPTIONS_PATH, BrokerImage, ClusterImage
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import ABSENT, Clock, Disk, MetadataStore
from conveyor.log.log_probe import LogProbe
from conveyor.settings.tree import Settings

if TYPE_CHECKING:
    from conveyor.broker.hosts.group_coordinators import Groups
    from conveyor.broker.hosts.inboxes import Inboxes
    from conveyor.broker.hosts.schedules import Schedules
    from conveyor.broker.produce.message_publisher import Messages
    from conveyor.broker.queues.dead_letters import DeadLetters
    from conveyor.broker.queues.queue_wiring import Queueing
    from conveyor.broker.queues.queues import Queues
    from conveyor.log.cache_share import CacheShare

log = logging.getLogger(__name__)

CLUSTER_ID_PATH = "/cluster/id"
_HOUSEKEEPING_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPorts:
    """What a broker is given from outside: disk, metadata, time, threads that may wait, fresh ids.

    failed: told of a bug; it has to stop the broker.
    """

    disk: Disk
    store: MetadataStore
    clock: Clock
    threads: Executor
    new_id: Callable[[], UUID]
    failed: Callable[[BaseException], None]
    compactor: Compactor


class Broker:
    """See the module's docstring. `start` before anything else; `stop` flushes everything."""

    def __init__(self, settings: Settings, ports: BrokerPorts) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        """Those in force: they change at run time."""
        self.dynamic_settings = DynamicSettings(settings, ports.store, self._prepare, self._apply)
        self.log_levels = LogLevels()
        self.clock = ports.clock
        self.log_probe = LogProbe()
        self.turn = Turn(loop.call_soon, ports.failed)
        self.tasks = Tasks(ports.failed)
        self.flusher = Flusher(loop, ports.threads, settings.broker.flush_threads)
        self.room = DiskRoom(ports.disk, settings.disk)
        self.partitions = self._partition_table(ports)
        deduplication = Deduplication(ports.clock, ports.threads, settings.broker.dedup_max_ids)
        intake = Intake(ports.clock, ports.threads, self.tasks, deduplication)
        self.publisher = Publisher(self.partitions, ports.clock, intake)
        self.fetcher = Fetcher(self.partitions, ports.clock, self.turn, settings.network.max_fetch_bytes)
        self.fetch_sessions = FetchSessions(ports.new_id, max_fetch_sessions=settings.network.max_fetch_sessions)
        self.producer_ids = ProducerIds(ports.store)
        self.request_budget = RequestBudget(settings.network.max_buffered_bytes)
        self.quotas = Quotas(ports.store, ports.clock, settings.clients)
        node_id = NodeId(settings.broker.node_id)
        self.topics = Topics(
            image=ClusterImage(cluster_id="", controller_id=node_id),
            store=ports.store,
            partitions=self.partitions,
            disk=ports.disk,
            settings=settings,
            threads=ports.threads,
            new_id=ports.new_id,
        )
        self.retention = Retention(
            partitions=self.partitions,
            room=self.room,
            clock=ports.clock,
            threads=ports.threads,
            tasks=self.tasks,
            interval_ms=settings.broker.retention_check_ms,
        )
        self.disk_watch = DiskWatch(
            room=self.room,
            topics=self.topics,
            partitions=self.partitions,
            retention=self.retention,
            clock=ports.clock,
            threads=ports.threads,
            tasks=self.tasks,
        )
        self.compaction = Compaction(
            partitions=self.partitions,
            room=self.room,
            compactor=ports.compactor,
            clock=ports.clock,
            threads=ports.threads,
            tasks=self.tasks,
            settings=settings.broker,
        )
        self.is_stopping = False
        """Set when the broker begins to stop: `/readyz` says so."""
        self._ports = ports
        self._cancel_housekeeping: Callable[[], None] | None = None

    @cached_property
    def groups(self) -> "Groups":
        """Consumer groups: loaded when somebody first asks for one."""
        from conveyor.broker.hosts.group_coordinators import Groups

        groups = Groups(
            topics=self.topics,
            partitions=self.partitions,
            settings=self.settings.groups,
            own_settings=self.dynamic_settings.layers.group_settings,
            clock=self.clock,
            threads=self._ports.threads,
            tasks=self.tasks,
            new_id=self._ports.new_id,
        )
        self.partitions.when_replaced(groups.partition_replaced)
        return groups

    @cached_property
    def queue_cache(self) -> "CacheShare":
        """The memory for what queues and inboxes have read."""
        from conveyor.log.cache_share import CacheShare

        return CacheShare(self.settings.broker.queue_cache_bytes)

    @cached_property
    def inboxes(self) -> "Inboxes":
        """What waits outside of topics with `delay.enable`: loaded when there is one."""
        from conveyor.broker.hosts.inboxes import Inboxes

        inboxes = Inboxes(
            partitions=self.partitions,
            room=self.room,
            clock=self.clock,
            threads=self._ports.threads,
            tasks=self.tasks,
            cache=self.queue_cache,
        )
        self.topics.when_deleted(inboxes.topic_deleted)
        self.disk_watch.when_back(inboxes.resume)
        return inboxes

    @cached_property
    def queueing(self) -> "Queueing":
        """The parts that speak in messages: loaded when somebody first asks for one, as not every broker is a queue."""
        from conveyor.broker.queues.queue_wiring import make_queueing

        queueing = make_queueing(self, self._ports)
        self.partitions.when_replaced(queueing.queues.partition_replaced)
        return queueing

    @property
    def messages(self) -> "Messages":
        return self.queueing.messages

    @property
    def queues(self) -> "Queues":
        return self.queueing.queues

    @property
    def queues_in_use(self) -> "Queues | None":
        """The queues, if anybody has ever asked for one."""
        return self.queues if "queueing" in self.__dict__ else None

    @property
    def dead_letters(self) -> "DeadLetters":
        return self.queueing.dead_letters

    @property
    def schedules(self) -> "Schedules":
        return self.queueing.schedules

    async def start(self, host: str, port: int) -> None:
        """Recover what is on the disk, and take a place in the cluster, reachable there. Raises StorageFailure."""
        await asyncio.get_running_loop().run_in_executor(self._ports.threads, self.room.measure)
        rack = self.settings.broker.rack or None
        node_id = NodeId(self.settings.broker.node_id)
        cluster_id = await self._cluster_id()
        image = ClusterImage(cluster_id=cluster_id, controller_id=node_id)
        self.topics.image = image.with_broker(BrokerImage(node_id=node_id, host=host, port=port, rack=rack))
        self.partitions.when_linked(lambda partition: self.inboxes.add(partition))
        await self.dynamic_settings.load()
        await self.topics.load()
        await self.topics.ensure_inboxes()
        await self.quotas.load()
        if await self._has_queues():
            await self.queues.start()
            await self.schedules.load()
        self._housekeep()
        self.retention.start()
        self.compaction.start()
        self.disk_watch.start()

    async def finish_requests(self) -> None:
        """Answer everybody who waits: with what there is, with an error, or after the last flush."""
        self._stop_looking()
        self.fetcher.finish_all()
        if "queueing" in self.__dict__:
            self.schedules.stop()
            self.queues.stop()
        if "inboxes" in self.__dict__:
            self.inboxes.stop()
        if "groups" in self.__dict__:
            self.groups.stop()
        await self.publisher.drain()
        await self.turn.end()
        await self.flusher.drain()
        await self.turn.end()
        await self.tasks.stop()

    async def stop(self) -> None:
        """Flush and seal every log. What was acknowledged is on the disk when this returns."""
        if self._cancel_housekeeping is not None:
            self._cancel_housekeeping()
        self._stop_looking()
        await asyncio.get_running_loop().run_in_executor(self._ports.threads, self.partitions.close)
        await self._ports.store.close()
        self.log_levels.reset()

    def _stop_looking(self) -> None:
        """Begin no more work of its own."""
        self.disk_watch.stop()
        self.retention.stop()
        self.compaction.stop()

    def _partition_table(self, ports: BrokerPorts) -> PartitionTable:
        services = PartitionServices(
            disk=ports.disk,
            clock=ports.clock,
            settings=self.settings,
            probe=self.log_probe,
            room=self.room,
            wants_write=self.turn.add_write,
            wants_flush=self.flusher.want,
            went_offline=lambda failure: self.disk_watch.went_offline(failure),
        )
        return PartitionTable(services)

    async def _prepare(self, settings: Settings) -> None:
        """Before settings change at run time. Raises RequestError."""
        await self.topics.prepare(settings)

    def _apply(self, layers: LayeredSettings) -> None:
        """Settings have changed at run time: every part that can takes them."""
        settings = self.settings = layers.in_force
        self.topics.use(settings)
        self.retention.use(settings.broker.retention_check_ms)
        self.compaction.use(settings.broker)
        self.quotas.use(settings.clients)
        is_changed = settings.broker.log_level != layers.given.broker.log_level
        self.log_levels.use(settings.broker.log_level if is_changed else None)
        if "groups" in self.__dict__:
            self.groups.use(settings.groups, layers.group_settings)

    async def _has_queues(self) -> bool:
        """Whether something in the metadata has to be looked after from the start."""
        return bool(
            await self._ports.store.children(SUBSCRIPTIONS_PATH) or await self._ports.store.children(SCHEDULES_PATH)
        )

    async def _cluster_id(self) -> str:
        """The cluster's own name, made when it is first started."""
        await self._ports.store.put(CLUSTER_ID_PATH, new_cluster_id(self._ports.new_id).encode(), ABSENT)
        node = await self._ports.store.get(CLUSTER_ID_PATH)
        assert node is not None
        return node.value.decode()

    def _housekeep(self) -> None:
        """Forget producers that have been silent for long."""
        now_ms = self.clock.now_ms()
        for partition in self.partitions:
            partition.log.producers.expire(now_ms)
        self._cancel_housekeeping = self.clock.call_later(_HOUSEKEEPING_MS, self._housekeep)
