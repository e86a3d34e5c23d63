"""The room of this broker's partitions, assembled: what opens, writes, flushes, trims and compacts them."""

import asyncio

from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.active_producers import ProducerExpiry
from conveyor.broker.partitions.commit_checks import CommitChecks
from conveyor.broker.partitions.compaction import Compaction
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.disk_watch import DiskWatch
from conveyor.broker.partitions.flusher import Flusher
from conveyor.broker.partitions.index_preparation import IndexPreparation
from conveyor.broker.partitions.log_opening import make_log_opening
from conveyor.broker.partitions.log_task_runner import LogTaskRunner
from conveyor.broker.partitions.loop_tick import LoopTick
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.partitions.reconciler import Reconciler
from conveyor.broker.partitions.retention import Retention
from conveyor.broker.services import Services
from conveyor.log.log_probe import LogProbe
from conveyor.replication.partition import Partition
from conveyor.replication.term_context import OwnerCalls


class Partitions:
    def __init__(self, services: Services, ports: BrokerPorts, subscriptions: Subscriptions) -> None:
        self._services = services
        loop, settings = asyncio.get_running_loop(), services.settings
        self.log_probe = LogProbe()
        self.tick = LoopTick(loop, ports.failed)
        self.flusher = Flusher(loop, services.threads, settings.broker.flush_threads)
        self.disk_room = DiskRoom(ports.disk, settings.disk)
        self.table = PartitionTable(services.metadata, self.disk_room)
        self.logs = make_log_opening(services, self.table, ports, self.log_probe)
        self.log_tasks = LogTaskRunner(services, self.logs.checkpoint)
        commit_checks = CommitChecks(services.clock, self.table)
        services.serving.callback(commit_checks.stop)
        calls = OwnerCalls[Partition](
            wants_write=self.tick.add_write,
            wants_flush=self.flusher.want,
            went_offline=self.table.went_offline.emit,
            wants_checks=commit_checks.add,
            wants_index=IndexPreparation(services).want,
            holds_lease=services.metadata.session.holds_lease,
        )
        self.reconciler = Reconciler(services, self.table, self.logs, self.log_tasks, calls)
        services.serving.callback(self.reconciler.stop)
        self.retention = Retention(services, self.table, self.disk_room, subscriptions)
        self.compaction = Compaction(services, self.table, self.disk_room, ports.compactor)
        self.disk_watch = DiskWatch(services, self.disk_room, self.reconciler, self.retention)
        self._producer_expiry = ProducerExpiry(services, self.table)

    async def measure_room(self) -> None:
        """Measure the disk before anything is written to it. Raises StorageFailure."""
        await asyncio.get_running_loop().run_in_executor(self._services.threads, self.disk_room.measure)

    def start(self) -> None:
        """Begin the work in the background; the partitions are open."""
        for work in (self._producer_expiry, self.retention, self.compaction, self.disk_watch):
            work.start()

    async def drain(self) -> None:
        """Wait until everything that was appended is flushed, and its requests are answered."""
        await self.tick.end()
        await self.flusher.drain()
        await self.tick.end()
