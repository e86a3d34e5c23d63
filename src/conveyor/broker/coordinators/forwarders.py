"""The forwarders of the delayed topics whose partitions this broker leads.

A delayed topic always has the partitions, replicas and leaders of its target. A forwarder uses the partitions of the
delayed topic, of its target and of its state `__delay_state.<delayed topic>`; when one of them is reopened, the
forwarder is loaded again.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from conveyor.broker.answers import answered
from conveyor.broker.coordinators.coordinators import Coordinators
from conveyor.broker.coordinators.forwarder import DelayedPartitions, Forwarder, LoadedForwarder
from conveyor.broker.coordinators.machine_services import MachineServices
from conveyor.broker.metadata.producer_ids import ProducerIds
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.cluster.image import DELAY_STATE, companion
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset


class Forwarders(Coordinators[Forwarder]):
    name = "forwarder"
    retry_ms = 1_000

    def __init__(self, services: MachineServices, table: PartitionTable, producer_ids: ProducerIds) -> None:
        super().__init__(services.common, table)
        self._machine_services = services
        self._metadata = services.common.metadata
        self._producer_ids = producer_ids

    async def cancel(self, topic: str, number: int, offset: int) -> None:
        """Cancel a message that waits in a delayed topic: it is never forwarded. The cancellation is durable on return.

        Raises RequestError: UNKNOWN_TOPIC, PARTITION_OFFLINE, those of `Forwarder.cancel`.
        """
        forwarder = await self.of(topic, number)
        await answered(partial(forwarder.cancel, offset))

    async def of(self, topic: str, number: int) -> Forwarder:
        """Return the forwarder of a partition of a delayed topic. Raises RequestError: UNKNOWN_TOPIC,
        PARTITION_OFFLINE; UNKNOWN_MESSAGE if the topic is not a delayed one.
        """
        partition = self._table.find(topic, number)
        partition.leading()
        if self._target_of(topic) is None:
            raise RequestError(ErrorKind.UNKNOWN_MESSAGE, f"topic '{topic}' is not a delayed topic")
        return await self.loaded(partition)

    def gained(self, partition: Partition) -> None:
        """Load the forwarder of a partition, and those that forward to it."""
        for delayed in self._delayed(partition):
            super().gained(delayed)

    def resume(self, _: None) -> None:
        """Forward due messages: the disk has space again."""
        for forwarder in self.list():
            forwarder.resume()

    def try_continue(self, runner: Forwarder, partition: Partition) -> bool:
        try:
            return runner.partitions == self._partitions_of(partition)
        except RequestError:
            return False

    def logs(self, partition: Partition) -> Sequence[Partition]:
        """The forwarder reads the delayed topic only as far as it is committed."""
        _, target, state = self._partitions_of(partition)
        return target, state

    async def load(self, partition: Partition) -> Forwarder:
        partitions = self._partitions_of(partition)
        loaded = LoadedForwarder(partitions, last_stable_offset(partition), self._machine_services.room)
        # Otherwise the last intent may be carried out in a log that is elected later, and not in this one.
        target = partitions.target
        await answered(partial(target.leading().when_followed, target.log.log_end_offset))
        await self._read(partitions.state, loaded.read_state)
        needs_id = loaded.needs_producer_id
        producer_id = await self._producer_ids.allocate() if needs_id else loaded.machine.producer_id
        await self._read(partitions.target, loaded.read_target, producer_id)
        await self._read(partition, loaded.read_delayed)
        for used in partitions:
            used.leading()
        return Forwarder(loaded, self._machine_services)

    async def begin(self, runner: Forwarder) -> None:
        runner.failed.listen(partial(self._failed, runner.partitions.delayed))
        if runner.is_to_restate:
            runner.restate(runner.machine.snapshot())
        runner.start()

    def _failed(self, partition: Partition, error: RequestError) -> None:
        reason = f"the forwarder of {partition.identity} stopped: {error}"
        self.failed(partition, RequestError(ErrorKind.PARTITION_OFFLINE, reason))

    def _delayed(self, partition: Partition) -> Iterator[Partition]:
        """Yield the partition if it is of a delayed topic, and those of its delayed topics if it is of a target."""
        topic, number = partition.identity
        if self._target_of(topic) is not None:
            yield partition
        for name in self._metadata.image.delayed_topics.get(topic, ()):
            delayed = self._table.get(name, number)
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
        find = self._table.find
        return DelayedPartitions(delayed, find(target, number), find(companion(DELAY_STATE, topic), number))
