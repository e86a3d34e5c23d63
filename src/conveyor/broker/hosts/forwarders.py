"""The forwarders of the delayed topics whose partitions this broker leads.

A delayed topic always has the partitions, replicas and leaders of its target. A forwarder uses the partitions of the
delayed topic, of its target and of its state `__delay_state.<delayed topic>`; when one of them is reopened, the
forwarder is loaded again.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from conveyor.broker.answers import answered
from conveyor.broker.hosts.forwarder import DelayedPartitions, Forwarder, LoadedForwarder, Work
from conveyor.broker.hosts.host import Host
from conveyor.broker.metadata.producer_ids import ProducerIds
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.partitions.retention import Retention
from conveyor.broker.services import Services
from conveyor.cluster.image import DELAY_STATE, companion
from conveyor.kernel.errors import ErrorKind, OutOfFiles, RequestError, StorageFailure
from conveyor.log.cache_share import CacheShare
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset

_RETRY_MS = 1_000


class ForwarderServices(msgspec.Struct, frozen=True, kw_only=True):
    """The services that every forwarder uses, besides those of all rooms."""

    common: Services
    cache: CacheShare
    room: DiskRoom
    retention: Retention


class Forwarders:
    """See the module's docstring. For the contract of loading: `host.MachineKind`."""

    name = "forwarder"

    def __init__(self, partitions: PartitionTable, producer_ids: ProducerIds, services: ForwarderServices) -> None:
        self._common = services.common
        self._metadata = services.common.metadata
        self._partitions = partitions
        self._producer_ids = producer_ids
        self._services = services
        self._host: Host[Forwarder] = Host(self, self._common.clock, self._common.tasks, _RETRY_MS)

    async def cancel(self, topic: str, number: int, offset: int) -> None:
        """Cancel a message that waits in a delayed topic: it is never forwarded. The cancellation is durable on return.

        Raises RequestError: UNKNOWN_TOPIC, PARTITION_OFFLINE, those of `Forwarder.cancel`.
        """
        partition = self._partitions.find(topic, number)
        partition.leading()
        if self._target_of(topic) is None:
            raise RequestError(ErrorKind.UNKNOWN_MESSAGE, f"topic '{topic}' is not a delayed topic")
        forwarder = await self._host.loaded(partition)
        await answered(partial(forwarder.cancel, offset))

    def topics(self) -> set[str]:
        """Return the names of all delayed topics."""
        return {name for names in self._metadata.image.delayed_topics.values() for name in names}

    def gained(self, partition: Partition) -> None:
        """Load the forwarder of a partition, and those that forward to it."""
        for delayed in self._delayed(partition):
            self._host.gained(delayed)

    def lost(self, partition: Partition) -> None:
        """Stop the forwarder of a partition. Those that forward to it lose their own partitions, too."""
        self._host.lost(partition)

    def stop(self) -> None:
        """Stop forwarding. The next start continues."""
        self._host.stop()

    def resume(self) -> None:
        """Forward due messages: the disk has space again."""
        for forwarder in list(self._host.all_running()):
            forwarder.resume()

    def try_continue(self, machine: Forwarder, partition: Partition) -> bool:
        try:
            return machine.partitions == self._partitions_of(partition)
        except RequestError:
            return False

    def logs(self, partition: Partition) -> Sequence[Partition]:
        """The forwarder reads the delayed topic only as far as it is committed."""
        _, target, state = self._partitions_of(partition)
        return target, state

    async def load(self, partition: Partition, check_wanted: Callable[[], None]) -> Forwarder:
        """Read the logs of a forwarder and start it."""
        services, partitions = self._services, self._partitions_of(partition)
        for used in partitions:
            used.leading()
        loaded = LoadedForwarder(partitions, last_stable_offset(partition), services.room)
        await self._read(partitions.state, loaded.read_state)
        needs_id = loaded.needs_producer_id
        producer_id = await self._producer_ids.allocate() if needs_id else loaded.machine.producer_id
        await self._read(partitions.target, partial(loaded.read_target, producer_id))
        await self._read(partition, loaded.read_delayed)
        for used in partitions:
            used.leading()
        check_wanted()
        return Forwarder(
            loaded,
            clock=self._common.clock,
            call_soon=asyncio.get_running_loop().call_soon,
            off_loop=self._off_loop,
            cache=services.cache,
            trim=partial(services.retention.trim_later, partitions.state),
            failed=lambda failure: self._host.failed(partition, _not_loaded(partition, failure)),
        )

    def _delayed(self, partition: Partition) -> Iterator[Partition]:
        """Yield the partition if it is of a delayed topic, and those of its delayed topics if it is of a target."""
        topic, number = partition.identity
        if self._target_of(topic) is not None:
            yield partition
        for name in self._metadata.image.delayed_topics.get(topic, ()):
            delayed = self._partitions.get(name, number)
            if delayed is not None and delayed.leader_term is not None:
                yield delayed

    def _target_of(self, topic: str) -> str | None:
        image = self._metadata.image.topics.get(topic)
        return None if image is None else image.delay_target

    def _partitions_of(self, delayed: Partition) -> DelayedPartitions:
        """Return the partitions of a forwarder. Raises RequestError."""
        topic, number = delayed.identity
        target = self._target_of(topic)
        if target is None:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic}' was deleted")
        find = self._partitions.find
        return DelayedPartitions(delayed, find(target, number), find(companion(DELAY_STATE, topic), number))

    async def _read(self, partition: Partition, work: Callable[[], None]) -> None:
        """Run a function that reads a partition on a thread. Raises RequestError."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._common.threads, work)
        except StorageFailure as failure:
            raise partition.failed_read(failure) from failure

    def _off_loop(self, work: Callable[[], Work], done: Callable[[Work | StorageFailure], None]) -> None:
        async def run() -> None:
            try:
                result = await asyncio.get_running_loop().run_in_executor(self._common.threads, work)
            except StorageFailure as failure:
                return done(failure)
            done(result)

        self._common.tasks.start(run())


def _not_loaded(partition: Partition, failure: OutOfFiles | RequestError) -> RequestError:
    return RequestError(ErrorKind.PARTITION_OFFLINE, f"the forwarder of {partition.identity} stopped: {failure}")
