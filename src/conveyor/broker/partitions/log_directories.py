"""Opens, renames and removes the directories of this broker's partitions. Every method blocks: call it off the loop.

<data-dir>/logs/<topic>-<partition>/                      a partition
<data-dir>/logs/<topic>-<partition>.<topic id>.deleted    being removed; the next start continues the removal
<data-dir>/logs/<topic>-<partition>.stray                 not assigned to this broker; kept for manual inspection
<data-dir>/logs/<topic>-<partition>.damaged               a damaged log that was copied again; kept likewise

A name has at most 255 bytes on a disk, and that of a topic up to 249. So that of a directory that no partition uses any
more is cut.
"""

import logging
from collections.abc import Collection, Iterable, Iterator
from itertools import count

import msgspec

from conveyor.cluster.image import ClusterImage, TopicImage, owner_of
from conveyor.kernel.errors import LogDamaged, LogIncomplete, StorageFailure
from conveyor.kernel.ids import NodeId, TopicId
from conveyor.kernel.ports import Clock, Disk
from conveyor.log.log import Log
from conveyor.log.log_parts import ExpectedLog
from conveyor.log.log_probe import LogProbe
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.recovery.recovery import open_log
from conveyor.replication.replica_facts import ReplicaKey
from conveyor.settings.tree import ProducerSettings, TopicSettings

log = logging.getLogger(__name__)

LOGS = "logs"
_DELETED_SUFFIX = ".deleted"
_STRAY_SUFFIX = ".stray"
_DAMAGED_SUFFIX = ".damaged"
_LONGEST_NAME = 255
_KEPT_CHARACTERS = 150
"""Of a name that is cut. The topic id, or a number, tells it from others."""
_REPAIR = (
    "unless another replica leads, from which the log is copied, stop the broker and restore the missing or damaged"
    " files, or move the partition's directory elsewhere to give its records up"
)


class LogDirectories(msgspec.Struct, frozen=True, kw_only=True):
    disk: Disk
    clock: Clock
    producers: ProducerSettings
    probe: LogProbe

    def open(
        self, topic: TopicImage, number: int, settings: TopicSettings, expected: ExpectedLog
    ) -> Log | StorageFailure:
        """Open or create the log of one partition."""
        path = _path(topic, number)
        try:
            if not expected.may_be_new and not self.disk.exists(path):
                return LogIncomplete(f"{path} is missing, and was used before: {_advice(topic)}")
            opened = open_log(
                self.disk, path, topic.topic_id, settings, self.producers, self.probe, self.clock.now_ms(), expected
            )
        except LogIncomplete as failure:
            return LogIncomplete(f"{failure}: {_advice(topic)}")
        except LogDamaged as failure:
            return LogDamaged(f"{failure}: {_REPAIR}")
        except StorageFailure as failure:
            return failure
        if opened.log_end_offset < expected.end_offset:
            has_lost = f"{path} ends at offset {opened.log_end_offset}, and was on the disk up to {expected.end_offset}"
            if len(topic.partitions[number].replicas) > 1:
                opened.abandon()
                return LogIncomplete(f"{has_lost}: {_advice(topic)}")
            log.error("records lost: %s", has_lost)
            opened.recovered = opened.recovered._replace(was_stopped_cleanly=False)
        return opened

    def has(self, topic: TopicImage, number: int) -> bool:
        """Return whether a partition has a directory, or has one that cannot be looked up."""
        try:
            return self.disk.exists(_path(topic, number))
        except StorageFailure:
            return True

    def has_segments(self, topic: TopicImage, number: int) -> bool:
        """Return whether a partition has a directory with segments, or has one that cannot be read."""
        path = _path(topic, number)
        try:
            return self.disk.exists(path) and any(name.endswith(".log") for name in self.disk.list(path))
        except StorageFailure:
            return True

    def sync(self) -> None:
        """Make the names of all directories durable. Raises StorageFailure."""
        self.disk.sync_directory(LOGS)

    def check_room_aside(self, topic: TopicImage, number: int) -> None:
        """Check that `set_aside` can keep a damaged log. Raises StorageFailure if an earlier one is still there, so
        that a failing disk does not fill up with copies.
        """
        kept = _damaged_path(topic, number)
        if self.disk.exists(kept) and self.has(topic, number):
            raise StorageFailure(f"{kept} is still there: remove it, and the log is copied again from another replica")

    def set_aside(self, topic: TopicImage, number: int) -> StorageFailure | None:
        """Rename the directory of a damaged log, so that the log can begin again. No power failure brings the name back
        then. Returns the failure, if any; a later call continues.
        """
        name = _path(topic, number)
        kept = _damaged_path(topic, number)
        try:
            self.check_room_aside(topic, number)
            if self.disk.exists(name):
                self.disk.rename(name, kept)
                log.warning("damaged log set aside path=%s: it is copied again from another replica", kept)
            self.sync()
        except StorageFailure as failure:
            return failure
        return None

    def retire(self, partitions: Iterable[tuple[TopicImage, int]]) -> list[str]:
        """Rename the directories of closed partitions, so that their names become free.

        Returns the new names, for `remove`. If a directory cannot be renamed, the next start sets it aside.
        """
        return [retired for topic, number in partitions if (retired := self._retire(topic, number)) is not None]

    def keep(self, topic: TopicImage, number: int) -> None:
        """Rename the directory of a closed partition, and keep it: no other replica may have its records."""
        name = f"{topic.name}-{number}"
        try:
            names = set(self.disk.list(LOGS))
            if name in names:
                kept = _free_name(name, names)
                self.disk.rename(f"{LOGS}/{name}", f"{LOGS}/{kept}")
                log.warning("directory kept name=%s: its log has committed records that its leader lacks", kept)
        except StorageFailure as failure:
            log.warning("directory not renamed name=%s: %s", name, failure)

    def remove(self, directory: str) -> None:
        """Remove a retired directory. After a failure the next start removes it."""
        try:
            self.disk.remove_tree(directory)
        except StorageFailure as failure:
            log.warning("directory of a deleted topic stays name=%s: %s", directory, failure)

    def set_strays_aside(
        self, image: ClusterImage, node_id: NodeId, used: Collection[ReplicaKey] | None = None
    ) -> None:
        """Rename the directories that are not assigned to this broker, and finish deletions. Call before the first
        `open`.

        A directory belongs to a topic id: after a power cut, a deleted topic's directory may have its successor's name.
        The cut may have taken the id, too. used: the replicas that this broker has used, if that is known; a directory
        without an id is one of theirs.
        """
        owners = {
            f"{topic.name}-{number}": ReplicaKey(topic.topic_id, number)
            for topic in image.topics.values()
            for number, partition in enumerate(topic.partitions)
            if node_id in partition.replicas
        }
        names = set(self.disk.list(LOGS))
        for name in sorted(names):
            owner = owners.get(name)
            if name.endswith(_DELETED_SUFFIX):
                self.remove(f"{LOGS}/{name}")
            elif name.endswith((_STRAY_SUFFIX, _DAMAGED_SUFFIX)):
                continue
            elif owner is None or self._belongs_to_other_topic(
                f"{LOGS}/{name}", owner.topic_id, is_unused=used is not None and owner not in used
            ):
                kept = _free_name(name, names)
                log.warning("stray directory name=%s: no topic owns it, kept as %s", name, kept)
                self.disk.rename(f"{LOGS}/{name}", f"{LOGS}/{kept}")
                names.add(kept)

    def _retire(self, topic: TopicImage, number: int) -> str | None:
        name = _path(topic, number)
        choices = _numbered(_cut_path(topic, number), _DELETED_SUFFIX)
        try:
            if self.disk.exists(name) and not self._belongs_to_other_topic(name, topic.topic_id):
                retired = next(path for path in choices if not self.disk.exists(path))
                self.disk.rename(name, retired)
                return retired
        except StorageFailure as failure:
            log.warning("directory of a deleted topic stays name=%s: %s", name, failure)
        return None

    def _belongs_to_other_topic(self, directory: str, owner: TopicId, *, is_unused: bool = False) -> bool:
        """Return whether the directory belongs to another topic id.

        An unreadable id counts as the owner's: opening it fails. A missing or damaged one does if the owner's partition
        was used.
        """
        try:
            found = PartitionDirectory(self.disk, directory, owner).owner
        except StorageFailure:
            return False
        return is_unused if found is None else found != owner


def _advice(topic: TopicImage) -> str:
    return (
        "unless another replica leads, from which it is copied, restore the directory while the broker is stopped, or"
        " give its records up, and then:"
        f" conveyor cluster elect {topic.delay_target or owner_of(topic.name)} --unclean --yes"
    )


def _path(topic: TopicImage, number: int) -> str:
    return f"{LOGS}/{topic.name}-{number}"


def _cut_path(topic: TopicImage, number: int) -> str:
    return f"{LOGS}/{topic.name[:_KEPT_CHARACTERS]}-{number}.{topic.topic_id.hex}"


def _damaged_path(topic: TopicImage, number: int) -> str:
    path = f"{_path(topic, number)}{_DAMAGED_SUFFIX}"
    fits = len(path) <= len(f"{LOGS}/") + _LONGEST_NAME
    return path if fits else f"{_cut_path(topic, number)}{_DAMAGED_SUFFIX}"


def _free_name(name: str, taken: Collection[str]) -> str:
    if len(name) > _LONGEST_NAME - len(f".999{_STRAY_SUFFIX}"):
        name = name[:_KEPT_CHARACTERS]
    return next(free for free in _numbered(name, _STRAY_SUFFIX) if free not in taken)


def _numbered(name: str, suffix: str) -> Iterator[str]:
    """Yield a name with a suffix, then with numbers between them."""
    yield f"{name}{suffix}"
    yield from (f"{name}.{number}{suffix}" for number in count(2))
