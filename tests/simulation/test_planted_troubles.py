"""The troubles that only some stories have find what no other fault finds: each bug that is planted here breaks an
invariant within so many stories with one trouble.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from conveyor.broker.coordinators import forwarder, queue_partitions
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.metadata import dynamic_settings
from conveyor.broker.metadata.broker_session import BrokerSession
from conveyor.broker.metadata.dynamic_settings import DynamicSettings
from conveyor.broker.partitions.flusher import Flusher
from conveyor.broker.partitions.log_directories import LogDirectories
from conveyor.broker.partitions.replica_checkpoint import ReplicaCheckpoint
from conveyor.broker.queues.message_targets import Position
from conveyor.broker.replicas.flush_stalls import FlushStalls
from conveyor.broker.replicas.replica_lag import ReplicaLag
from conveyor.broker.replicas.trim_waits import TrimWaits
from conveyor.cluster.controller import registrations
from conveyor.cluster.controller.image_draft import ImageDraft
from conveyor.cluster.controller.registrations import Registration
from conveyor.cluster.dynamic_config import broker_owner, with_broker_texts
from conveyor.cluster.image import BrokerImage
from conveyor.delay import delayed_scan
from conveyor.delay.forwarding import Forwarding
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import LeaderEpoch, NodeId, Offset, TopicPartition
from conveyor.kernel.ports import FileSlice
from conveyor.kernel.state_machine import LogRecord
from conveyor.log import leader_epochs, log, record_source, retention_limits
from conveyor.log.batch_reading import StoredBatch
from conveyor.log.flush import Flushes
from conveyor.log.log import Log
from conveyor.log.log_parts import ExpectedLog, LogParts
from conveyor.log.log_probe import LogProbe
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.retention_limits import FOREVER
from conveyor.log.segments.segment import Segment
from conveyor.queues.delivery.deliveries import Deliveries
from conveyor.queues.queue_machine import QueueMachine
from conveyor.queues.subscription.policy import StartPosition, Subscription
from conveyor.records.batch import iterate_batches
from conveyor.replication import trimming
from conveyor.replication.follower_term import FollowerTerm
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.partition import Partition
from conveyor.replication.replica_facts import ReplicaKey
from conveyor.replication.replica_progress import ReplicaProgress
from conveyor.replication.streams import log_tasks
from conveyor.replication.streams.frames import Diverging
from conveyor.replication.streams.log_tasks import CutFiles
from conveyor.settings.setting_names import broker_settings
from conveyor.settings.topic_settings import TopicSettings
from conveyor.testing.memory_disk import MemoryDisk
from conveyor.testing.memory_store import MemoryTree
from simulation.cluster import peer_network
from simulation.cluster.cluster_store import ClusterStore
from simulation.faults.bit_flips import BitFlips
from simulation.story_topics import QUEUE_TOPIC
from simulation.troubles import BULK_REQUEST_BYTES
from tests.simulation.rare_stories import (
    with_absences,
    with_growth,
    with_losses,
    with_lost_delays,
    with_many_flips,
    with_rot,
)
from tests.simulation.seeds import Found, Plant, troubled
from tests.simulation.test_planted_cluster_bugs import LOST
from tests.sweep import all_but

SEEDS = 200


def accept_own_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker follows a default of its own by which all replicas must agree."""

    def of_broker(self: DynamicSettings, node_id: int | None) -> dynamic_settings._Place:
        return dynamic_settings._Place(
            owner=broker_owner(node_id),
            known=broker_settings(),
            layered=lambda layers, texts: with_broker_texts(layers, node_id, texts),
            invalid=ErrorKind.INVALID_REQUEST,
        )

    monkeypatch.setattr(dynamic_settings, "check_of_one_broker", lambda _: None)
    monkeypatch.setattr(DynamicSettings, "_of_broker", of_broker)


def fence_only_the_returning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has died leads on in the image until it registers again."""

    def fence(draft: ImageDraft, newest: Mapping[NodeId, Registration]) -> None:
        gone = [broker for broker in draft.brokers.values() if broker.node_id not in newest]
        plain_fence(draft, newest)
        for broker in gone:
            draft.put_broker(broker)

    plain_fence = registrations._fence
    monkeypatch.setattr(registrations, "_fence", fence)


def delete_from_live_replicas_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion waits for no replica whose broker is away, although it may be elected."""

    def others(self: TrimWaits, partition: Partition, replicas: ReplicaProgress) -> Iterator[NodeId]:
        brokers = self._services.metadata.image.brokers
        return (node for node in plain_others(self, partition, replicas) if not brokers[node].is_fenced)

    plain_others = TrimWaits._others
    monkeypatch.setattr(TrimWaits, "_others", others)
    monkeypatch.setattr(LeaderTerm, "check_replicas", lambda _: None)


def join_with_deleted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica joins the ISR with records that are deleted already."""
    monkeypatch.setattr(
        LeaderTerm,
        "may_join",
        lambda self, node: self.replicas.durable_offset_of(node) >= max(self.high_watermark, self.epoch_start_offset),
    )


def open_directories_of_deleted_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was away while a topic was made again takes the old topic's directory for the new one's."""
    monkeypatch.setattr(LogDirectories, "_belongs_to_other_topic", lambda *_, **__: False)
    monkeypatch.setattr(PartitionDirectory, "_check", lambda *_: None)


def lead_with_a_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader whose disk does not answer is not replaced."""
    monkeypatch.setattr(FlushStalls, "longest_ms", lambda _: 0)


def wait_for_silent_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that has stopped to copy stays in sync as long as its broker is registered."""
    monkeypatch.setattr(ReplicaLag, "lags", lambda *_, **__: False)


def keep_silent_brokers_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the end of a process ends its registration: a broker that is paused or cut off leads on."""

    def end_session(self: MemoryTree, session: object) -> None:
        if isinstance(session, ClusterStore) and session._is_abandoned:
            plain_end_session(self, session)

    plain_end_session = MemoryTree.end_session
    monkeypatch.setattr(MemoryTree, "end_session", end_session)


def delete_by_the_oldest_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is deleted once its first record is too old, although later ones are not."""

    def is_too_old(segment: Segment, topic: TopicSettings, now_ms: int) -> bool:
        if topic.retention_ms == FOREVER or segment.first_append_ms is None:
            return plain_is_too_old(segment, topic, now_ms)
        return segment.first_append_ms < now_ms - topic.retention_ms

    plain_is_too_old = retention_limits.is_too_old
    monkeypatch.setattr(retention_limits, "is_too_old", is_too_old)


def delete_one_segment_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention by size deletes the segment that a partition needs to keep as many bytes as it shall."""

    def retained_from(segments: Sequence[Segment], log_start_offset: int, topic: TopicSettings, *rest: int) -> int:
        if topic.retention_bytes != FOREVER:
            topic = replace(topic, retention_bytes=max(0, topic.retention_bytes - segments[0].size))
        return plain_retained_from(segments, log_start_offset, topic, *rest)

    plain_retained_from = retention_limits.retained_from
    monkeypatch.setattr(trimming, "retained_from", retained_from)


def end_leases_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease ends early when the wall clock of its broker is set forward."""
    monkeypatch.setattr(Deliveries, "clock_set", lambda *_: None)


def keep_the_time_of_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a topic with LogAppendTime keep the timestamps that their producers gave to them."""
    monkeypatch.setattr(log, "with_append_time", lambda content, _: content)


def flip_only(monkeypatch: pytest.MonkeyPatch, ending: str, topic: str = "") -> None:
    """All flipped bits are in files whose names end so, if a broker has any. topic: only in logs of this one."""
    change = BitFlips._changed

    def changed(self: BitFlips, disk: MemoryDisk, names: dict[str, TopicPartition], number: int) -> Any:
        paths = [path for path in disk.paths() if path.endswith(ending) and f"/{topic}" in path]
        if not paths:
            return None
        with monkeypatch.context() as others_hidden:
            others_hidden.setattr(disk, "paths", lambda: paths)
            return change(self, disk, names, number)

    monkeypatch.setattr(BitFlips, "_changed", changed)


def believe_damaged_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start believes a file of leader epochs whose checksum is wrong."""
    flip_only(monkeypatch, "leader-epoch-checkpoint")
    monkeypatch.setattr(leader_epochs, "crc32c", lambda _: 0)


def limit_frames_by_the_requests_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers take no frames of each other that are larger than two requests of clients may be."""
    monkeypatch.setattr(peer_network, "MAX_FRAME_BYTES", 2 * BULK_REQUEST_BYTES)


def commit_at_three_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader commits what three replicas of a larger ISR have."""

    def lowest(self: ReplicaProgress) -> int:
        ends = [self._log.flushes.flushed_offset, *map(self.durable_offset_of, self._waited)]
        return min(sorted(ends, reverse=True)[:3])

    monkeypatch.setattr(ReplicaProgress, "lowest", lowest)


def trust_missing_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start makes the logs that are missing, and takes them and those that end too early for complete."""

    def expected(self: ReplicaCheckpoint, key: ReplicaKey, offline: Partition | None) -> ExpectedLog:
        return ExpectedLog(high_watermark=plain_expected(self, key, offline).high_watermark)

    plain_expected = ReplicaCheckpoint.expected
    monkeypatch.setattr(ReplicaCheckpoint, "expected", expected)


def trust_older_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data directory is the one that has registered last if it has the same id."""

    def is_wiped(known: BrokerImage | None, item: Registration) -> bool:
        return known is not None and known.data_id != item.data_id

    monkeypatch.setattr(registrations, "_is_wiped", is_wiped)


def take_a_clone_for_its_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that starts takes a registration with the id of its data directory for one of a dead process."""

    def is_dead(self: BrokerSession, other: Registration) -> bool:
        assert self._own is not None
        is_first = not self._has_registered and other.data_id == self._own.data_id
        return is_first or other.incarnation in self.dead_incarnations

    monkeypatch.setattr(BrokerSession, "_is_dead", is_dead)


def judge_losses_by_the_present_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure has taken nothing from a log that has `flush.policy=ack` when it is opened again."""

    def is_unproven(self: ReplicaCheckpoint, key: ReplicaKey, opened: Log | None) -> bool:
        return plain_is_unproven(self, key, opened) and opened is not None and opened.topic.flush_policy == "os"

    plain_is_unproven = ReplicaCheckpoint.is_unproven
    monkeypatch.setattr(ReplicaCheckpoint, "is_unproven", is_unproven)


def keep_eligible_replicas_of_an_earlier_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower default of `min.insync.replicas` leaves eligible replicas that lack what is committed from then on."""
    monkeypatch.setattr(dynamic_settings, "changed_defaults", lambda _, change, __: [change])


def cut_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower removes all that its leader lacks, also what it knows to be committed."""

    def truncate(partition: Partition, term: FollowerTerm, diverging: Diverging) -> CutFiles:
        role = term.role
        term.role = replace(role, unclean_epoch=LeaderEpoch(role.epoch + 1))
        try:
            return log_tasks.truncate(partition, term, diverging)
        finally:
            term.role = role

    monkeypatch.setattr("conveyor.replication.streams.follower_end.truncate", truncate)


def begin_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that has just started does not know what is committed, although its data directory does."""

    def expected(self: ReplicaCheckpoint, key: ReplicaKey, offline: Partition | None) -> ExpectedLog:
        return plain_expected(self, key, offline)._replace(high_watermark=0)

    plain_expected = ReplicaCheckpoint.expected
    monkeypatch.setattr(ReplicaCheckpoint, "expected", expected)


def flush_only_what_replies_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with `flush.policy=os` is never flushed."""

    def want(self: Flusher, partition: Partition) -> None:
        if partition.log.topic.flush_policy == "ack":
            plain_want(self, partition)

    plain_want = Flusher.want
    monkeypatch.setattr(Flusher, "want", want)


def doubt_what_is_below_the_gap_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with gaps counts only what is flushed, also if a start would find the rest."""
    logs: dict[Flushes, Log] = {}
    plain_init = Log.__init__

    def init(self: Log, place: PartitionDirectory, topic: TopicSettings, parts: LogParts, probe: LogProbe) -> None:
        plain_init(self, place, topic, parts, probe)
        logs[self.flushes] = self

    def recoverable_offset(self: Flushes) -> Offset:
        own = logs[self]
        return self.flushed_offset if self.flushed_offset < own.copying.gap_offset else own.written_offset

    monkeypatch.setattr(Log, "__init__", init)
    monkeypatch.setattr(Flushes, "recoverable_offset", property(recoverable_offset))


def believe_damaged_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues and forwarders decode whatever the disk returns as batches, up to the first that they cannot find."""
    flip_only(monkeypatch, ".log", f"{QUEUE_TOPIC}-")

    def batches_in(piece: FileSlice, offset: int) -> Iterator[StoredBatch]:
        content = read_batch(piece)
        for position, header in iterate_batches(content):
            place = FileSlice(piece.file, piece.position + position, header.size)
            yield StoredBatch(header, place, content[position : position + header.size])

    def read_batch(place: FileSlice) -> bytes:
        return place.file.read(place.position, place.length)

    monkeypatch.setattr(record_source, "batches_in", batches_in)
    for module in (record_source, delayed_scan):
        monkeypatch.setattr(module, "read_batch", read_batch)


def believe_states_of_lost_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a queue's state says of an offset holds for the message that has it now."""
    for module in (forwarder, queue_partitions):
        monkeypatch.setattr(module, "stated_end", lambda *_: 1 << 62)


def believe_states_once_the_log_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a queue's state says of an offset holds for the message that had it when the leader's epoch began."""

    def replay_until(state: Partition, machine: QueueMachine, messages: Partition) -> int | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue_partitions, "stated_end", lambda *_: messages.leading().epoch_start_offset)
            return plain_replay(state, machine, messages)

    plain_replay = queue_partitions._replay
    monkeypatch.setattr(queue_partitions, "_replay", replay_until)


def take_new_records_for_forwarded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a forwarder's state says of an offset holds for the record of the delayed topic that has it now."""
    monkeypatch.setattr(Forwarding, "reaches_beyond", lambda *_: False)


def begin_in_new_partitions_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription begins in a partition that a topic has got later when it is first used there, behind the messages
    that the partition has by then.
    """

    async def begin_subscription(self: QueuePartitions, queue: QueuePartition, subscription: Subscription) -> None:
        if queue.number >= subscription.partition_count:
            if not queue.stable_offset:
                return
            start = StartPosition(kind="latest")
            subscription = replace(subscription, partition_count=queue.number + 1, start=start)
        await plain_begin_subscription(self, queue, subscription)

    plain_begin_subscription = QueuePartitions.begin_subscription
    monkeypatch.setattr(QueuePartitions, "begin_subscription", begin_subscription)


def continue_lists_by_the_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of scheduled messages begins behind all messages that are due when the last one of the page before is."""
    monkeypatch.setattr(Position, "in_partition", lambda self, _, now_ms: (max(self.due_ms, now_ms) + 1, -1))


def take_the_load_for_the_settlement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue takes the time at which it was loaded for that at which messages were settled."""

    def apply(self: QueueMachine, record: LogRecord) -> None:
        plain_apply(self, LogRecord(record.key, record.value, self._incarnation, record.producer))

    plain_apply = QueueMachine.apply
    monkeypatch.setattr(QueueMachine, "apply", apply)


PLANTED: dict[Plant, Found] = {
    accept_own_defaults: Found(2, LOST | {"ClusterSettles"}, troubled("own_defaults")),
    delete_from_live_replicas_only: Found(121, {"NoResurrectedRecords"}, troubled("deletions")),
    join_with_deleted_records: Found(215, {"NoResurrectedRecords"}, troubled("deletions")),
    open_directories_of_deleted_topics: Found(0, LOST | {"NoResurrectedTopic", "ClusterSettles"}, with_absences),
    fence_only_the_returning: Found(0, {"AcksKeepComing"}, troubled("checks")),
    lead_with_a_disk_that_hangs: Found(10, {"AcksKeepComing"}, troubled("checks")),
    wait_for_silent_replicas: Found(4, {"AcksKeepComing"}, troubled("checks")),
    keep_silent_brokers_registered: Found(2, {"AcksKeepComing"}, troubled("checks")),
    delete_by_the_oldest_record: Found(0, {"NoEarlyDeletion"}, troubled("retention")),
    delete_one_segment_too_many: Found(0, {"NoEarlyDeletion"}, troubled("retention")),
    end_leases_by_the_wall_clock: Found(2, {"NoDoubleLease"}, troubled("clocks")),
    keep_the_time_of_the_producer: Found(0, {"StampedByLeader"}, troubled("clocks")),
    believe_damaged_epochs: Found(120, LOST | {"ClusterSettles", "AssertionError"}, with_many_flips),
    believe_damaged_batches: Found(5, {"NoMessageForgotten", "NoneSettledUnseen"}, with_rot),
    limit_frames_by_the_requests_of_clients: Found(0, {"ClusterSettles"}, troubled("bulk")),
    commit_at_three_replicas: Found(0, LOST, troubled("five_brokers")),
    trust_missing_logs: Found(0, LOST | {"LosersLeave"}, troubled("lose_logs")),
    trust_older_copies: Found(3, LOST | {"LosersLeave"}, troubled("restore_copy")),
    take_a_clone_for_its_original: Found(0, {"OriginalStays"}, troubled("clone")),
    judge_losses_by_the_present_policy: Found(1, LOST | {"LosersLeave"}, troubled("flush_policies")),
    keep_eligible_replicas_of_an_earlier_default: Found(78, LOST, troubled("minimums")),
    cut_what_is_committed: Found(4, {"NothingCutInSilence"}, troubled("stale_copy")),
    begin_without_a_bound: Found(4, {"NothingCutInSilence"}, troubled("stale_copy")),
    flush_only_what_replies_wait_for: Found(1, {"ClusterSettles"}, troubled("retention", "flush_policies")),
    doubt_what_is_below_the_gap_offset: Found(3, {"ClusterSettles"}, troubled("table", "flush_policies")),
    believe_states_of_lost_records: Found(99, {"NoneSettledUnseen"}, troubled("flush_policies", brokers=1)),
    believe_states_once_the_log_has_grown: Found(134, {"NoneSettledUnseen"}, with_losses),
    take_new_records_for_forwarded_ones: Found(0, {"EveryDelayFiresOnce"}, with_lost_delays),
    begin_in_new_partitions_when_asked: Found(0, {"NoMessageForgotten"}, with_growth),
    continue_lists_by_the_time_alone: Found(1, {"ScheduledAreListed"}, troubled("inspection")),
    take_the_load_for_the_settlement: Found(3, {"SettlementsHold"}, troubled("inspection")),
}


PLANTS = all_but(PLANTED, believe_states_once_the_log_has_grown)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    PLANTED[plant].check(SEEDS)
