"""Keeps the file `replica-checkpoint` up to date; see `replica_facts`. A broker with an embedded store has it, too.

    load                   before a log is opened
    a log was opened       the file lists it before the log is used
    flush.policy=os        the file says that the replica may be unflushed before the policy takes effect
    a registration         the file has its incarnation before the metadata store has it
    settle                 the image shows it: all logs that are doubtful have left the ISRs
    every few seconds      high watermarks, if any have risen; not if this broker is alone
    records are cut        the file has a lower high watermark before a file of the log is cut below it
    a clean stop           everything, and that it was clean

What is stored may be older than what holds, and never says more than holds: a high watermark is a lower bound, a
replica that may be unflushed remains so until everything is flushed that counted as durable before.

Until `settle`, the file keeps what it said at the start: another crash must not make doubtful logs sound. One write is
in progress at a time. A write that fails leaves either content in the file, so nothing counts as stored afterwards.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

import msgspec

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.services import Services
from conveyor.broker.timed_signal import Pauses
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import StorageFailure, TransientFailure
from conveyor.kernel.ports import Disk
from conveyor.kernel.signal import Signal
from conveyor.log.checked_file import read_checked, write_checked
from conveyor.log.log import Log
from conveyor.log.log_parts import ExpectedLog
from conveyor.replication.partition import Partition
from conveyor.replication.replica_facts import (
    NAME,
    DirectoryFacts,
    ReplicaFacts,
    ReplicaKey,
    decode_facts,
    encode_facts,
)
from conveyor.settings.tree import TopicSettings

log = logging.getLogger(__name__)

INTERVAL_MS = 5_000
MOST_INCARNATIONS = 16
"""Registrations that may have taken effect without being shown; each one begins after the previous one has failed."""
_SOFT = "os"
_HARD = "ack"


class ReplicaCheckpoint:
    """See the module's docstring. is_alone: there are no other brokers, and no page cache matters. cache_id: see
    `BrokerPorts`; an empty one counts as lost.

    is_settled: whether nothing is doubtful, because of `settle` or because this broker is alone. softened: a
    `flush.policy=os` that had to wait may take effect.
    """

    def __init__(
        self,
        services: Services,
        partitions: PartitionTable,
        disk: Disk,
        *,
        cache_id: str,
        is_alone: bool,
    ) -> None:
        self.softened: Signal[None] = Signal()
        self._disk = disk
        self._services = services
        self._partitions = partitions
        self._is_alone = self.is_settled = is_alone
        self._cache_id = self._shown_cache_id = "" if is_alone else cache_id
        self._incarnations: tuple[str, ...] = ()
        self._listed: dict[ReplicaKey, ReplicaFacts] = {}
        self._stored: DirectoryFacts | None = None
        """The content of the file; None if it is unknown."""
        self._stored_replicas: dict[ReplicaKey, ReplicaFacts] = {}
        self._unopened: set[ReplicaKey] = set()
        """The replicas that could not be opened before `settle`, after a power failure."""
        self._is_complete = self._trusts_unlisted = True
        self._is_loaded = False
        self._hardening: dict[ReplicaKey, int] = {}
        """The offsets up to which replicas must be flushed that had `flush.policy=os`."""
        self._softening: set[ReplicaKey] = set()
        """The replicas whose `flush.policy=os` waits for the file."""
        self._writing: asyncio.Future[None] | None = None
        self._is_keeping = False
        self._pauses = Pauses()
        self._alarm = Alarm(services.clock, self._keep_soon)

    # The start of a broker.

    def load(self, assigned: Collection[ReplicaKey], *, is_new: bool) -> None:
        """Read the file. Blocks. Raises StorageFailure.

        assigned: the replicas that the image assigns to this broker; others are forgotten. is_new: a missing file says
        nothing against the logs.
        """
        if not self._disk.exists(NAME):
            self._is_complete = self._trusts_unlisted = is_new
            self._stored, self._is_loaded = DirectoryFacts(), True
            return
        self._stored = facts = self._read()
        self._is_loaded = True
        self._is_complete, self._trusts_unlisted = facts is not None, False
        if facts is None:
            return log.error("nothing proves that the logs of this broker are complete: %s is damaged", NAME)
        self._incarnations = facts.incarnations
        self._stored_replicas = {replica.key: replica for replica in facts.replicas}
        self._listed = {key: replica for key, replica in self._stored_replicas.items() if key in assigned}
        if not self._is_alone and not facts.is_clean:
            self._shown_cache_id = facts.cache_id

    def _read(self) -> DirectoryFacts | None:
        """Return what the file has; None if it is damaged. Raises StorageFailure."""
        try:
            text = read_checked(self._disk, NAME)
        except TransientFailure:
            raise
        except StorageFailure as failure:
            log.error("file damaged: %s", failure)
            return None
        return decode_facts(text)

    def expected(self, key: ReplicaKey, offline: Partition | None) -> ExpectedLog:
        """Return what opening a log must find. offline: the partition that is opened again; it may know of commits that
        the file does not have yet. What it has reported counts, too: it may have joined the ISR with that unseen.
        """
        facts, reported_end = self._listed.get(key), 0
        if facts is not None and offline is not None and key_of(offline) == key:
            facts = self._listed[key] = self._seen(key, offline, facts, are_flushed=False)
            reported_end = offline.offline.end_offset
        if facts is None:
            return ExpectedLog(may_be_new=self._is_complete)
        counts_unflushed = facts.is_unflushed and not self._has_lost_cache
        end_offset = max(reported_end, facts.high_watermark if counts_unflushed else facts.flushed_offset)
        has_segment = not self._has_lost_cache and key not in self._unopened
        expected = ExpectedLog(False, end_offset, facts.high_watermark, facts.log_start_offset, has_segment)
        return expected._replace(is_unflushed=facts.is_unflushed)

    @property
    def used(self) -> frozenset[ReplicaKey] | None:
        """The replicas that this broker has used, as the file has listed them before; None if there is no such file."""
        return frozenset(self._listed) if self._is_complete and not self._trusts_unlisted else None

    def is_unproven(self, key: ReplicaKey, opened: Log | None) -> bool:
        """Return whether a log may lack committed records, as far as this directory can tell. opened: None if it cannot
        be opened now.
        """
        facts = self._listed.get(key)
        if facts is None:
            return not self._trusts_unlisted and (opened is None or opened.log_end_offset > 0)
        return facts.is_unflushed and self._has_lost_cache

    def settle(self) -> None:
        """All doubtful logs have left the ISRs, or this broker is alone and has opened all that there are: from now on
        the file says what holds.

        It says so soon: a log that has returned to an ISR would be doubtful again after a crash.
        """
        if self.is_settled and self._is_complete:
            return
        self.is_settled = self._is_complete = True
        if self._has_lost_cache:
            self._listed = {key: _on_disk(facts) for key, facts in self._listed.items()}
            self._unopened = self._listed.keys() - set(map(key_of, self._partitions))
        self._shown_cache_id = self._cache_id
        self._keep_soon()

    @property
    def has_stored_settlement(self) -> bool:
        """True if the file knows of `settle`. Otherwise logs would be doubtful again after a crash."""
        return self.is_settled and self._stored is not None and self._stored.cache_id == self._cache_id

    @property
    def _has_lost_cache(self) -> bool:
        """True if data may be lost that was not on the disk when the last process ended."""
        return not self._cache_id or self._shown_cache_id != self._cache_id

    # The logs of a running broker.

    def add(self, key: ReplicaKey, opened: Log | None) -> None:
        """A log was opened; None if it is missing: the file lists it until it begins again. Call `ensure_listed` before
        it is used.
        """
        before = self._listed.setdefault(key, ReplicaFacts(*key))
        if opened is None:
            return
        is_unflushed = before.is_unflushed or opened.topic.flush_policy == _SOFT
        self._listed[key] = msgspec.structs.replace(before, is_unflushed=is_unflushed)
        self._softening.discard(key)
        self._unopened.discard(key)

    def forget(self, key: ReplicaKey) -> None:
        """A log is not assigned any more, or is about to begin again."""
        self._listed.pop(key, None)
        self._unopened.discard(key)
        self._hardening.pop(key, None)
        self._softening.discard(key)

    async def ensure_listed(self, keys: Iterable[ReplicaKey]) -> None:
        """Return once the file lists these logs. Raises TransientFailure."""
        if not all(map(self.lists, keys)):
            await self.write()

    def lists(self, key: ReplicaKey) -> bool:
        """Return whether the file lists a log with all that its use demands."""
        stored, facts = self._stored, self._stored_replicas.get(key)
        if stored is None or facts is None or stored.is_clean or stored.cache_id != self._shown_cache_id:
            return False
        return facts.is_unflushed or not self._listed[key].is_unflushed

    def is_marked(self, key: ReplicaKey) -> bool:
        """Return whether the file may say that a replica is unflushed, so that it leaves ISRs after a power failure."""
        facts = self._stored_replicas.get(key)
        return self._stored is None or (facts is not None and facts.is_unflushed)

    def allowed(self, opened: Log, number: int, settings: TopicSettings) -> TopicSettings:
        """Return the settings that a log may have now. `flush.policy=os` waits for the file; see `start`."""
        key, stored = ReplicaKey(opened.place.topic_id, number), self._stored_replicas
        is_stored = self._stored is not None and key in stored and stored[key].is_unflushed
        if settings.flush_policy == _SOFT and not is_stored:
            self._softening.add(key)
            self._keep_soon()
            return replace(settings, flush_policy=_HARD)
        self._softening.discard(key)
        return settings

    async def lower(self, partition: Partition) -> None:
        """Return once the file does not say that a log ends above its end, or begins above its start.

        Call it before the files of the log are cut. Raises TransientFailure.
        """
        facts, log = self._stored_replicas.get(key_of(partition)), partition.log
        says_too_much = facts is not None and (
            facts.high_watermark > log.log_end_offset or facts.log_start_offset > log.log_start_offset
        )
        if self._stored is None or says_too_much:
            await self.write()

    async def claim(self, incarnation: str, shown: str) -> tuple[str, ...]:
        """Return the incarnations of this directory, once the file has this one, too. Raises TransientFailure.

        shown: the incarnation of this broker in the image, which never goes back.
        """
        known = self._incarnations
        if shown in known:
            known = known[known.index(shown) :]
        if incarnation not in known:
            known = (*known[:1], *known[1:][2 - MOST_INCARNATIONS :], incarnation)
        self._incarnations = known
        await self.write()
        return known

    # The file.

    def start(self) -> None:
        """Write every few seconds from now on."""
        self._is_keeping = True
        self._alarm.after(INTERVAL_MS)

    async def stop(self) -> None:
        """Write no more by itself. Returns once no write is in progress."""
        self._is_keeping = False
        self._alarm.cancel()
        await self._idle()

    async def write(self) -> None:
        """Return once the file says what holds now. Raises TransientFailure."""
        await self._idle()
        facts = self._facts()
        if facts == self._stored:
            return
        self._stored = None
        loop = asyncio.get_running_loop()
        writing = self._writing = loop.run_in_executor(self._services.threads, self._store, facts)
        writing.add_done_callback(lambda done: self._wrote(facts, done))
        try:
            await asyncio.shield(writing)
        except StorageFailure as failure:
            raise TransientFailure(f"{NAME} cannot be written: {failure}") from failure

    def write_at_stop(self, *, is_clean: bool) -> None:
        """Write after all logs were closed. is_clean: they were flushed and sealed. Blocks.

        A start that has failed before `load` changes nothing. One that has failed later has not made up for a lost page
        cache, or has not opened, and so not flushed, all logs that a page cache may hold: its stop is not clean.
        """
        if not self._is_loaded:
            return
        is_clean = is_clean and not self._has_lost_cache and self._listed.keys() <= set(map(key_of, self._partitions))
        facts = self._facts(are_flushed=is_clean)
        if not self._is_alone:
            facts = msgspec.structs.replace(facts, is_clean=is_clean)
        if facts != self._stored:
            try:
                self._store(facts)
            except StorageFailure as failure:
                log.warning("replica checkpoint not written reason=%s", failure)

    def _store(self, facts: DirectoryFacts) -> None:
        write_checked(self._disk, NAME, encode_facts(facts))

    def _wrote(self, facts: DirectoryFacts, done: "asyncio.Future[None]") -> None:
        self._writing = None
        if not done.cancelled() and done.exception() is None:
            self._stored, self._stored_replicas = facts, {replica.key: replica for replica in facts.replicas}
            if self._softening:
                self.softened.emit(None)

    async def _idle(self) -> None:
        while self._writing is not None:
            await asyncio.wait([self._writing])

    def _keep_soon(self) -> None:
        self._services.tasks.start(self._keep())

    async def _keep(self) -> None:
        try:
            await self.write()
            self._pauses.reset()
        except TransientFailure as failure:
            log.log(self._pauses.log_level, "replica checkpoint not written reason=%s", failure)
            self._pauses.next_ms()
        if self._is_keeping or self._softening:
            self._alarm.after(INTERVAL_MS)

    def _facts(self, *, are_flushed: bool = False) -> DirectoryFacts:
        for partition in self._partitions:
            key = key_of(partition)
            before = self._listed.get(key)
            if before is not None and partition.offline.reason is None:
                self._listed[key] = self._seen(key, partition, before, are_flushed=are_flushed)
        return DirectoryFacts(
            incarnations=self._incarnations, cache_id=self._shown_cache_id, replicas=tuple(self._listed.values())
        )

    def _seen(self, key: ReplicaKey, partition: Partition, before: ReplicaFacts, *, are_flushed: bool) -> ReplicaFacts:
        """Return the facts about a partition that is online. A follower may know of commits that it has not written.

        A log that begins again at a higher offset ends where it did until its files are changed.
        """
        high_watermark: int = min(partition.term.high_watermark, partition.log.flushes.recoverable_offset)
        if partition.log.truncation.is_pending:
            high_watermark = min(high_watermark, before.high_watermark)
        flushed_offset: int = (
            high_watermark if are_flushed else min(high_watermark, partition.log.flushes.flushed_offset)
        )
        is_unflushed = self._may_be_unflushed(key, partition.log, before)
        start_offset = min(partition.log.log_start_offset, partition.log.start.flushed_offset)
        seen = ReplicaFacts(*key, high_watermark, flushed_offset, is_unflushed, start_offset)
        return before if seen == before else seen

    def _may_be_unflushed(self, key: ReplicaKey, log: Log, before: ReplicaFacts) -> bool:
        """Records that counted as durable are below the offset that was written when the policy became `ack`."""
        if log.topic.flush_policy == _SOFT or key in self._softening:
            self._hardening.pop(key, None)
            return True
        if not before.is_unflushed or not self.is_settled:
            return before.is_unflushed
        end_offset = min(self._hardening.setdefault(key, log.written_offset), log.written_offset)
        if log.flushes.flushed_offset < end_offset:
            return True
        del self._hardening[key]
        return False


def _on_disk(facts: ReplicaFacts) -> ReplicaFacts:
    return msgspec.structs.replace(facts, high_watermark=facts.flushed_offset)


def key_of(partition: Partition) -> ReplicaKey:
    return ReplicaKey(partition.log.place.topic_id, partition.identity.partition)
