"""The partitions that this broker leads: opened from the disk, found by name, opened again, closed.

A partition whose failure has passed is opened again as another `Partition`. What was made of the old one is made anew:
`when_replaced` says so.

<data-dir>/logs/<topic>-<partition>/         a partition
<data-dir>/logs/<topic>-<partition>.stray    of no topic in the metadata; kept for people, never deleted here
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import NamedTuple

from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.cluster.image import INBOX, TopicImage, companion, companion_of, is_companion
from conveyor.kernel.errors import ErrorKind, PassingFailure, RequestError, StorageFailure
from conveyor.kernel.ids import TopicId, TopicPartition
from conveyor.kernel.ports import Clock, Disk, Volume
from conveyor.log.log import Log
from conveyor.log.log_probe import LogProbe
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.recovery.recovery import open_log
from conveyor.replication.partition import Partition
from conveyor.settings.tree import Settings, TopicSettings, topic_settings

log = logging.getLogger(__name__)

LOGS = "logs"
STRAY_SUFFIX = ".stray"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionServices:
    """What every partition is given."""

    disk: Disk
    clock: Clock
    settings: Settings
    probe: LogProbe
    room: DiskRoom
    wants_write: Callable[[Partition], None]
    wants_flush: Callable[[Partition], None]
    went_offline: Callable[[StorageFailure], None]


class _Unopened(NamedTuple):
    """Why a log could not be opened. No exception is kept: its traceback would keep files open."""

    reason: str
    may_pass: bool


class PartitionTable:
    """All partitions of this broker, by (topic, number)."""

    def __init__(self, services: PartitionServices) -> None:
        self._services = services
        self._defaults = services.settings.topics
        self._room = services.room
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._broken: dict[tuple[str, int], _Unopened] = {}
        self._linked: list[Callable[[Partition], None]] = []
        self._replaced: list[Callable[[Partition], None]] = []

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def find(self, topic: str, number: int) -> Partition:
        """Raises RequestError: UNKNOWN_TOPIC, PARTITION_OFFLINE."""
        partition = self._partitions.get((topic, number))
        if partition is None:
            raise self._missing(topic, number)
        return partition

    def has(self, topic: str, number: int) -> bool:
        """Whether `find` finds a partition; it may be offline by now."""
        return (topic, number) in self._partitions

    def serves(self, partition: Partition) -> bool:
        """Whether a partition is still the one of its name: not if its topic was deleted, and perhaps made again."""
        return self._partitions.get(partition.identity) is partition

    def get(self, topic: str, number: int) -> Partition | None:
        """The partition, if it could be opened; it may be offline since."""
        return self._partitions.get((topic, number))

    def find_for_producer(self, topic: str, number: int) -> Partition:
        """A partition to append a producer's records to. Raises RequestError: also DISK_FULL."""
        partition = self.find(topic, number)
        if self._room.is_low:
            raise RequestError(ErrorKind.DISK_FULL, self._room.explanation)
        return partition

    def offline_reason(self, topic: str, number: int) -> str | None:
        """Why a partition is not served, if it is not."""
        partition = self._partitions.get((topic, number))
        if partition is not None:
            return partition.offline_reason
        unopened = self._broken.get((topic, number))
        return None if unopened is None else unopened.reason

    def is_empty(self, topic: TopicImage) -> bool:
        """Whether every partition of a topic is online and nothing was ever written to it."""
        found = [self._partitions.get((topic.name, number)) for number in range(len(topic.partitions))]
        return all(each is not None and each.log.log_end_offset == 0 for each in found)

    def offline(self) -> dict[str, str]:
        """Every partition that is not served, and why."""
        failed = {str(each.identity): each.offline_reason for each in self if each.offline_reason is not None}
        return failed | {str(TopicPartition(*key)): each.reason for key, each in self._broken.items()}

    def returning(self) -> list[TopicPartition]:
        """Partitions that can be opened again, as their failure may have passed. Companions come first."""
        failed = [each.identity for each in self if each.may_return]
        failed += [TopicPartition(*key) for key, each in self._broken.items() if each.may_pass]
        return sorted(failed, key=lambda each: not is_companion(each.topic))

    def may_return(self, topic: str, number: int) -> bool:
        """Whether `open_log` may be called for a partition that is offline, and then `replace`."""
        partition, inbox = self._partitions.get((topic, number)), (companion(INBOX, topic), number)
        if inbox in self._broken:
            return False  # The partition would go offline at once.
        if partition is not None:
            return partition.may_return
        unopened = self._broken.get((topic, number))
        return unopened is not None and unopened.may_pass

    def replace(self, topic: TopicImage, number: int, opened: Log | StorageFailure) -> None:
        """Serve a partition again, from a log that was opened again."""
        identity = TopicPartition(topic.name, number)
        if isinstance(opened, StorageFailure):
            return self._fail_again(identity, opened)
        self._broken.pop(identity, None)
        partition = self._partitions[identity] = self._new_partition(identity, opened, topic)
        log.info("partition online again partition=%s log_end_offset=%d", identity, opened.log_end_offset)
        self._link_inboxes(topic)
        for replaced in self._replaced:
            replaced(partition)

    def was_never_open(self, topic: str, number: int) -> bool:
        """Whether a partition could not be opened since the broker has started."""
        return (topic, number) in self._broken

    def hold_back(self, topic: str, number: int) -> None:
        """Let nobody append to a partition until `begin_epochs`."""
        partition = self._partitions.get((topic, number))
        if partition is not None:
            partition.is_read_only = True

    def begin_epochs(self, topic: TopicImage, numbers: Collection[int]) -> None:
        """The leader epochs of some partitions were raised, and are stored."""
        for number in numbers:
            partition = self._partitions.get((topic.name, number))
            if partition is not None:
                partition.begin_epoch(topic.partitions[number].leader_epoch)

    def when_replaced(self, replaced: Callable[[Partition], None]) -> None:
        """Call back when a partition is served again, as another `Partition`."""
        self._replaced.append(replaced)

    def open_logs(self, topic: TopicImage) -> list[Log | StorageFailure]:
        """Open or make the logs of a topic, one per partition. Blocks: call it off the loop, then `add` on it."""
        return [self.open_log(topic, number) for number in range(len(topic.partitions))]

    def open_missing_logs(self, topic: TopicImage) -> list[Log | StorageFailure]:
        """Make the logs of a topic's new partitions. Blocks: call it off the loop, then `add` on it."""
        known = self._partitions.keys() | self._broken.keys()
        present = sum((topic.name, number) in known for number in range(len(topic.partitions)))
        return [self.open_log(topic, number) for number in range(present, len(topic.partitions))]

    def open_log(self, topic: TopicImage, number: int) -> Log | StorageFailure:
        """Open or make the log of one partition. Blocks: call it off the loop."""
        services = self._services
        directory = f"{LOGS}/{topic.name}-{number}"
        wanted = topic_settings(self._defaults, topic.config)
        try:
            return open_log(
                services.disk,
                directory,
                topic.topic_id,
                wanted,
                services.settings.producers,
                services.probe,
                services.clock.now_ms(),
            )
        except StorageFailure as failure:
            return failure

    def configure(self, topic: TopicImage) -> None:
        """Let a topic's settings hold from now on."""
        wanted = topic_settings(self._defaults, topic.config)
        for number in range(len(topic.partitions)):
            partition = self._partitions.get((topic.name, number))
            if partition is not None:
                partition.log.topic = wanted
        self._link_inboxes(topic)

    def use(self, defaults: TopicSettings, topics: Iterable[TopicImage]) -> None:
        """Let other settings hold from now on for what the topics do not say themselves."""
        self._defaults = defaults
        for topic in topics:
            self.configure(topic)

    def when_linked(self, linked: Callable[[Partition], None]) -> None:
        """Call back when a partition has got an inbox: it has one from its beginning, or from now on."""
        self._linked.append(linked)

    def add(self, topic: TopicImage, logs: list[Log | StorageFailure]) -> None:
        """Serve a topic's last partitions from now on, as many as there are logs; those not opened are offline."""
        first = len(topic.partitions) - len(logs)
        for number, opened in enumerate(logs, first):
            identity = TopicPartition(topic.name, number)
            if isinstance(opened, StorageFailure):
                self._broken[identity] = _unopened(opened)
                log.error("partition offline partition=%s reason=%s", identity, self._broken[identity].reason)
            else:
                self._partitions[identity] = self._new_partition(identity, opened, topic)
        self._link_inboxes(topic)

    def remove(self, topic: TopicImage) -> list[str]:
        """Stop serving a topic. Returns the directories it leaves, renamed; delete them off the loop."""
        doomed = []
        for number in range(len(topic.partitions)):
            identity = TopicPartition(topic.name, number)
            partition = self._partitions.pop(identity, None)
            self._broken.pop(identity, None)
            if partition is not None:
                partition.end("its topic was deleted")
            name, gone = f"{LOGS}/{identity}", f"{LOGS}/{identity}.{topic.topic_id.hex}.deleted"
            disk = self._services.disk
            if disk.exists(name) and not _is_anothers(disk, name, topic.topic_id):
                try:
                    disk.rename(name, gone)
                except StorageFailure as failure:
                    log.warning("directory of a deleted topic stays name=%s: %s", name, failure)
                else:
                    doomed.append(gone)
        return doomed

    def volume(self) -> Volume:
        """Where the logs are. Raises StorageFailure."""
        return self._services.disk.volume(LOGS)

    def set_strays_aside(self, topics: dict[str, TopicImage]) -> None:
        """Before the first open: rename directories that no topic of the metadata owns, and finish deletions.

        A topic owns a directory by its id: a power cut may leave that of a deleted topic under its successor's name.
        """
        disk = self._services.disk
        owners = {
            f"{each.name}-{number}": each.topic_id for each in topics.values() for number in range(len(each.partitions))
        }
        names = set(disk.list(LOGS))
        for name in sorted(names):
            owner = owners.get(name)
            if name.endswith(".deleted"):
                _remove(disk, f"{LOGS}/{name}")
            elif name.endswith(STRAY_SUFFIX):
                continue
            elif owner is None or _is_anothers(disk, f"{LOGS}/{name}", owner):
                kept = _free_name(name, names)
                log.warning("stray directory name=%s: no topic owns it, kept as %s", name, kept)
                disk.rename(f"{LOGS}/{name}", f"{LOGS}/{kept}")
                names.add(kept)

    def close(self) -> None:
        """Flush and seal every log. Blocks."""
        for partition in self:
            if partition.offline_reason is None:
                try:
                    partition.log.close()
                except StorageFailure as failure:
                    partition.go_offline(failure)

    def _link_inboxes(self, topic: TopicImage) -> None:
        """Whatever is published to a partition goes to its inbox, if there is one. A topic may come after its inbox."""
        name = companion_of(INBOX, topic.name) or topic.name
        for number in range(len(topic.partitions)):
            key = companion(INBOX, name), number
            partition, inbox = self._partitions.get((name, number)), self._partitions.get(key)
            if partition is not None and key in self._broken:
                kind = PassingFailure if self._broken[key].may_pass else StorageFailure
                partition.go_offline(kind(f"its inbox is offline: {self._broken[key].reason}"))
            elif partition is not None and inbox is not None:
                inbox.log.topic = _inbox_settings(partition.log.topic, inbox.log.topic)
                if partition.inbox is not inbox:
                    partition.inbox = inbox
                    for linked in self._linked:
                        linked(partition)

    def _new_partition(self, identity: TopicPartition, opened: Log, topic: TopicImage) -> Partition:
        services = self._services
        epoch = topic.partitions[identity.partition].leader_epoch
        return Partition(identity, opened, epoch, services.wants_write, services.wants_flush, services.went_offline)

    def _fail_again(self, identity: TopicPartition, failure: StorageFailure) -> None:
        partition = self._partitions.get(identity)
        log.warning("partition stays offline partition=%s reason=%s", identity, str(failure))
        if partition is None:
            self._broken[identity] = _unopened(failure)
        else:
            partition.stay_offline(failure)

    def _missing(self, topic: str, number: int) -> RequestError:
        unopened = self._broken.get((topic, number))
        if unopened is not None:
            return RequestError(ErrorKind.PARTITION_OFFLINE, f"{topic}-{number} is offline: {unopened.reason}")
        return RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic}' has no partition {number} here")


def _remove(disk: Disk, directory: str) -> None:
    """A directory that nobody needs keeps no broker from its start."""
    try:
        disk.remove_tree(directory)
    except StorageFailure as failure:
        log.warning("directory of a deleted topic stays name=%s: %s", directory, failure)


def _is_anothers(disk: Disk, directory: str, owner: TopicId) -> bool:
    """False also if that cannot be read: the partition is offline then, and says why."""
    try:
        return PartitionDirectory(disk, directory, owner).is_anothers
    except StorageFailure:
        return False


def _free_name(name: str, taken: Collection[str]) -> str:
    """What a stray directory is called."""
    numbered = chain([name], (f"{name}.{number}" for number in count(2)))
    return next(f"{each}{STRAY_SUFFIX}" for each in numbered if f"{each}{STRAY_SUFFIX}" not in taken)


def _unopened(failure: StorageFailure) -> _Unopened:
    return _Unopened(str(failure), isinstance(failure, PassingFailure))


def _inbox_settings(topic: TopicSettings, inbox: TopicSettings) -> TopicSettings:
    """What is checked of records, and how they are stamped, is the topic's business; how they are kept, the inbox's."""
    return replace(
        topic,
        cleanup_policy="acknowledged",
        retention_ms=inbox.retention_ms,
        retention_bytes=inbox.retention_bytes,
        flush_policy=inbox.flush_policy,
        segment_bytes=inbox.segment_bytes,
        segment_ms=inbox.segment_ms,
    )
