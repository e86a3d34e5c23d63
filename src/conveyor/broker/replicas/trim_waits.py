"""Waits until the replicas of a partition have removed the records that its leader has removed.

    leader trims -> followers learn its log start, trim, and report theirs -> the lowest log start reaches the offset

It waits for each replica that a clean election may choose: those in the ISR and the ELR, and those that are about to
join. Otherwise the deletion would be undone after its answer. It also waits for live replicas out of sync: those whose
brokers the image shows and does not fence. A log start counts once it is on the disk. Source: KIP-107, and KIP-966.
"""

from collections.abc import Callable, Iterator

from conveyor.broker.answers import answered
from conveyor.broker.services import Services
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.replication.partition import Partition
from conveyor.replication.replica_progress import ReplicaProgress


class TrimWaits:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: dict[Partition, list[Callable[[], None]]] = {}
        services.metadata.listen(self._observe)

    async def wait(self, partition: Partition, offset: int, timeout_ms: int) -> int:
        """See `ReplicationObserver.trimmed_by_all`."""

        def submit(answer: Callable[[int | RequestError], None]) -> Callable[[], None]:
            def look() -> None:
                try:
                    low_watermark = self._low_watermark(partition)
                except RequestError as error:
                    leave()
                    return answer(error)
                if low_watermark >= offset:
                    leave()
                    answer(low_watermark)

            def end() -> None:
                alarm.cancel()
                leave()
                self._waiting[partition].remove(look)
                if not self._waiting[partition]:
                    del self._waiting[partition]

            alarm = Alarm(self._services.clock, lambda: answer(self._late(partition, offset)))
            alarm.after(max(0, timeout_ms))
            self._waiting.setdefault(partition, []).append(look)
            leave = partition.changed.listen(lambda _: look())
            look()
            return end

        return await answered(submit)

    def reported(self, partition: Partition) -> None:
        """A replica has reported its log start offset."""
        for look in tuple(self._waiting.get(partition, ())):
            look()

    def _low_watermark(self, partition: Partition) -> int:
        replicas = partition.leading().replicas
        starts = [replicas.log_start_of(node) for node in self._others(partition, replicas)]
        return min([int(partition.log.start.flushed_offset), *starts])

    def _others(self, partition: Partition, replicas: ReplicaProgress) -> Iterator[NodeId]:
        """Yield the replicas on other brokers that are live, or may lead next."""
        image = self._services.metadata.image
        stored = image.partition(*partition.identity)
        if stored is None:
            return
        for node in stored.replicas:
            broker = image.brokers.get(node)
            is_live = broker is not None and not broker.is_fenced
            may_lead = node in (*stored.isr, *stored.elr, *replicas.joining)
            if node != self._services.me and (is_live or may_lead):
                yield node

    def _late(self, partition: Partition, offset: int) -> RequestError:
        term = partition.leader_term
        others = [] if term is None else self._others(partition, term.replicas)
        behind = [node for node in others if term is not None and term.replicas.log_start_of(node) < offset]
        return RequestError(
            ErrorKind.REQUEST_TIMED_OUT,
            f"{partition.identity}: brokers {behind} have not removed the records below offset {offset} yet",
        )

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        for partition in tuple(self._waiting):
            self.reported(partition)
