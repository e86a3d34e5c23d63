"""The simulation of a cluster has teeth: each bug that is planted here breaks an invariant within so many seeds.

A test begins at the seed that is known to find its bug, so that it is quick. If the schedules change and another seed
has to be found, it plays the following ones.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import permutations
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from conveyor.broker.coordinators import forwarder
from conveyor.broker.fetch import list_offsets
from conveyor.broker.liveness.isolation import Isolation
from conveyor.broker.metadata.broker_session import BrokerSession
from conveyor.broker.partitions import reconciler
from conveyor.broker.partitions.reconciler import Reconciler
from conveyor.broker.partitions.replica_checkpoint import ReplicaCheckpoint
from conveyor.broker.produce.early_batches import EarlyBatches
from conveyor.cluster import topic_decisions
from conveyor.cluster.controller import partition_transition, registrations
from conveyor.cluster.controller.image_draft import ImageDraft
from conveyor.cluster.controller.registrations import Registration
from conveyor.cluster.image import PartitionImage
from conveyor.delay.forwarding import Forwarding
from conveyor.kernel.ids import NodeId, Offset, ProducerIdentity
from conveyor.kernel.state_machine import LogRecord, Reply
from conveyor.log import flush
from conveyor.log.log import Log
from conveyor.log.producers.producer_snapshot import encode_snapshot
from conveyor.log.producers.producer_state import ProducerEntries, ProducerState
from conveyor.records.batch import BatchHeader
from conveyor.replication.follower_term import FollowerTerm
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.machine_runner import MachineRunner
from conveyor.replication.partition import Partition
from conveyor.replication.replica_facts import DirectoryFacts, ReplicaKey
from conveyor.replication.replica_progress import ReplicaProgress
from conveyor.replication.roles import Follower, Leader
from conveyor.replication.streams.follower_end import FollowerEnd
from conveyor.replication.term_context import TermContext
from conveyor.testing.memory_disk import MemoryFile
from simulation.story_rules import NODE_IDS, RULES
from simulation.story_schedule import Step, StorySchedule
from simulation.story_topics import PARTITIONS
from tests.planted_replication_bugs import (
    commit_below_the_minimum_isr,
    count_reports_of_earlier_epochs,
    ignore_pending_joins,
    join_below_the_epoch_start,
    report_written_as_flushed,
)
from tests.simulation.seeds import Found, Plant, troubled, with_more
from tests.sweep import all_but

SEEDS = 200
LOST = {
    "IsrTruth", "NoAcknowledgedLoss", "NothingTakenBack", "CommittedOffsetsHold", "NoResurrectedAck", "LogMatching",
    "OrderedOnce", "EveryDelayFiresOnce", "NoMessageForgotten", "NoOffsetGoesBack",
}  # fmt: skip
"""Which promise is seen to be broken first is up to the seed."""


def keep_the_epoch_after_a_flap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that has ended and begun again in one observation changes nothing but the registration (KAFKA-7235)."""

    def fence(draft: ImageDraft, newest: Mapping[NodeId, Registration]) -> None:
        back = [
            newest[broker.node_id]
            for broker in draft.brokers.values()
            if broker.node_id in newest and not broker.is_fenced
        ]
        for item in back:
            if item.broker_epoch != draft.brokers[item.node_id].broker_epoch:
                draft.put_broker(registrations._broker(item))
        plain_fence(draft, newest)

    plain_fence = registrations._fence
    monkeypatch.setattr(registrations, "_fence", fence)


def lead_without_a_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose session has ended leads on until it sees another leader, and does not send its clients away."""
    monkeypatch.setattr(Reconciler, "_registration_lost", lambda *_: None)
    monkeypatch.setattr(BrokerSession, "holds_lease", lambda _: True)
    monkeypatch.setattr(Isolation, "_decide", lambda *_: None)


def keep_diverging_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower does not cut off the records that its leader does not have."""
    monkeypatch.setattr(FollowerEnd, "_diverged", lambda *_: None)


def trust_own_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica takes the end of its log for its high watermark before it has followed its leader (KAFKA-14704)."""

    def begin(self: FollowerTerm, context: TermContext, role: Follower, high_watermark: Offset) -> None:
        plain_begin(self, context, role, max(high_watermark, context.log.flushes.flushed_offset))

    plain_begin = FollowerTerm.__init__
    monkeypatch.setattr(FollowerTerm, "__init__", begin)


def commit_without_the_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark waits for the leader only."""

    monkeypatch.setattr(ReplicaProgress, "_wait", lambda self: setattr(self, "_waited", ()))


def keep_wiped_brokers_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker with a new data directory stays in its ISRs (KAFKA-14139)."""
    monkeypatch.setattr(registrations, "_forget", lambda *_: True)


def keep_rebooted_brokers_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has lost its page cache stays in its ISRs (KIP-966, the last one standing)."""

    monkeypatch.setattr(ReplicaCheckpoint, "_has_lost_cache", property(lambda _: False))


def lead_alone_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that is alone in its ISR acknowledges although its session may have ended."""

    monkeypatch.setattr(Leader, "needs_lease", False)


def show_the_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that does not know yet what is committed shows its high watermark as the end (KIP-207)."""
    monkeypatch.setattr(list_offsets, "has_committed_epoch", lambda _: True)


def keep_stale_eligible_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower `min.insync.replicas` leaves eligible replicas that lack what is committed from then on (KIP-966)."""
    monkeypatch.setattr(topic_decisions, "ended_eligibility", lambda *_: iter(()))


def end_reassignments_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reassignment ends once the added replicas are in sync, although another target is not (KAFKA-15665)."""

    def completed(wanted: PartitionImage) -> PartitionImage:
        if not wanted.target or not set(wanted.adding) <= set(wanted.isr):
            return wanted
        return replace(wanted, replicas=wanted.target, isr=wanted.target, origin=(), target=())

    monkeypatch.setattr(partition_transition, "_completed", completed)


def forget_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is sent again is not recognised."""
    monkeypatch.setattr(ProducerState, "check", lambda *_: None)


def forward_without_an_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forwarder's state is kept in memory only."""

    def append_batch(
        self: MachineRunner[Any], records: Sequence[LogRecord], now_ms: int, producer: ProducerIdentity | None = None
    ) -> bool:
        return isinstance(self._machine, Forwarding) or plain_append(self, records, now_ms, producer)

    plain_append = MachineRunner._append_batch
    monkeypatch.setattr(MachineRunner, "_append_batch", append_batch)


def forward_before_the_intent_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forwarder appends to the target as soon as its intent is in the leader's log."""

    def reply_when_safe(self: MachineRunner[Any], replies: tuple[Reply, ...]) -> None:
        if isinstance(self._machine, Forwarding):
            self._reply(replies, None)
        else:
            plain_reply(self, replies)

    plain_reply = MachineRunner._reply_when_safe
    monkeypatch.setattr(MachineRunner, "_reply_when_safe", reply_when_safe)


def begin_before_the_target_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forwarder believes a high watermark of an earlier epoch, and does not wait for the replicas of its target."""
    monkeypatch.setattr(LeaderTerm, "when_followed", LeaderTerm.when_committed)


def forward_the_last_intent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new forwarder takes nothing of the last intent for carried out."""
    monkeypatch.setattr(forwarder, "carried_out", lambda *_: 0)


def leave_a_producer_out_of_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot lacks the producer that was idle longest, unless a transaction is open."""

    def encode(producers: ProducerEntries, leader_epoch: int) -> bytes:
        others = producers._replace(producer_ids=producers.producer_ids[1:], producers=producers.producers[1:])
        return encode_snapshot(producers if producers.opened else others, leader_epoch)

    monkeypatch.setattr(flush, "encode_snapshot", encode)


def keep_the_mark_of_a_clean_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was stopped cleanly once takes each later stop for a clean one."""

    clean: set[ReplicaCheckpoint] = set()

    def load(self: ReplicaCheckpoint, assigned: Collection[ReplicaKey], *, is_new: bool) -> None:
        plain_load(self, assigned, is_new=is_new)
        if self._stored is not None and self._stored.is_clean:
            clean.add(self)

    def facts(self: ReplicaCheckpoint, *, are_flushed: bool = False) -> DirectoryFacts:
        return msgspec.structs.replace(plain_facts(self, are_flushed=are_flushed), is_clean=self in clean)

    plain_load, plain_facts = ReplicaCheckpoint.load, ReplicaCheckpoint._facts
    monkeypatch.setattr(ReplicaCheckpoint, "load", load)
    monkeypatch.setattr(ReplicaCheckpoint, "_facts", facts)


def elect_no_eligible_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition whose ISR is dead waits for it, although an eligible replica is live (KIP-966)."""

    def elected(partition: PartitionImage, rules: partition_transition.Rules) -> partition_transition._Elected:
        return plain_elected(replace(partition, elr=()), rules)

    plain_elected = partition_transition._elected
    monkeypatch.setattr(partition_transition, "_elected", elected)


def remove_tombstones_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction removes tombstones that some replicas do not have yet."""
    monkeypatch.setattr(LeaderTerm, "tombstones_end_offset", property(lambda self: self._context.log.log_end_offset))


def never_trim_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers keep the records that their leader has deleted."""
    monkeypatch.setattr(FollowerEnd, "_trim", lambda *_: None)


def decide_at_once_on_early_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that has overtaken an earlier one of its producer does not wait for it."""
    monkeypatch.setattr(EarlyBatches, "check", lambda *_: None)


def let_unknown_producers_begin_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that has overtaken the first one of its producer is stored (KAFKA-19880)."""

    def is_early(self: ProducerState, header: BatchHeader) -> bool:
        return self.remembered(header.producer_id).epoch >= 0 and plain_is_early(self, header)

    plain_is_early = ProducerState.is_early
    monkeypatch.setattr(ProducerState, "is_early", is_early)


def with_lone_leaders(seed: int) -> StorySchedule:
    """A broker is alone in its ISRs, and then loses the metadata store, while clients send to it: drawn too rarely."""
    chance = Random(seed)
    node_id = chance.choice(NODE_IDS)
    pairs = list(permutations(NODE_IDS, 2))
    place = next(place for place, pair in enumerate(pairs) if pair[0] == node_id)
    rules = {"lag_ms": 500, "store_delay_ms": 100, "min_insync": 1}
    steps = [Step(0, RULES, name, number) for name, number in rules.items()]
    steps += [
        Step(at_ms, chance.choice(("producer-all", "producer-plain")), "produce", chance.getrandbits(16))
        for at_ms in range(0, 12_000, 100)
    ]
    steps.append(Step(3_000, "network", "isolate", 64_998 + place))
    steps.append(Step(5_000 + chance.randrange(500), f"store-{node_id}", "cut_store", 45_000 + chance.randrange(9_999)))
    return StorySchedule(seed, tuple(sorted(steps)))


def believe_pages_after_a_failed_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start takes what memory shows for what the disk has."""
    monkeypatch.setattr(MemoryFile, "reload", MemoryFile.sync)


def with_new_producers(seed: int) -> StorySchedule:
    """A leader is paused when a producer sends its first batches: drawn too rarely."""
    chance = Random(seed)
    steps = [Step(4_000, "reader", "read", number) for number in range(PARTITIONS)]
    steps.append(Step(5_000, f"broker-{chance.choice(NODE_IDS)}", "pause", 50_000 + chance.randrange(10_000)))
    steps.append(Step(4_900 + chance.randrange(200), "producer-pipelined", "produce", chance.getrandbits(16)))
    return StorySchedule(seed, tuple(sorted(steps)))


def believe_a_shorter_log_above_the_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader goes on in its epoch although its log came back without records that it had sent to followers."""

    def has_lost_records(before: Partition, opened: Log) -> bool:
        term = before.leader_term
        return term is not None and opened.log_end_offset < term.high_watermark

    monkeypatch.setattr(reconciler, "_has_lost_records", has_lost_records)


with_dropped_writes = with_more("data", "drop_writes", 12, lambda chance: chance.getrandbits(15))
"""Disks have no room when they write back: drawn in no story."""


PLANTED: dict[Plant, Found] = {
    ignore_pending_joins: Found(36, LOST),
    commit_below_the_minimum_isr: Found(0, LOST),
    keep_the_epoch_after_a_flap: Found(0, {"SingleLeaderPerEpoch", "LosersLeave", "AssertionError"}),
    lead_without_a_registration: Found(454, {"LoneLeaderIsSure", "NoDoubleLease"}),
    keep_diverging_records: Found(7, LOST | {"ClusterSettles"}),
    trust_own_records: Found(8, LOST | {"ClusterSettles"}),
    commit_without_the_followers: Found(0, LOST),
    keep_wiped_brokers_in_sync: Found(0, LOST | {"LosersLeave"}),
    keep_rebooted_brokers_in_sync: Found(5, LOST | {"LosersLeave", "ClusterSettles"}),
    lead_alone_without_a_session: Found(2, {"LoneLeaderIsSure"}, with_lone_leaders),
    show_the_end_at_once: Found(16, {"NoOffsetGoesBack"}),
    join_below_the_epoch_start: Found(175, LOST | {"NoResurrectedRecords"}),
    report_written_as_flushed: Found(0, LOST),
    keep_stale_eligible_replicas: Found(132, LOST),
    end_reassignments_early: Found(179, LOST | {"LoneLeaderIsSure"}),
    forget_producers: Found(3, {"OrderedOnce"}),
    forward_without_an_intent: Found(0, {"EveryDelayFiresOnce"}),
    count_reports_of_earlier_epochs: Found(8, LOST | {"CommittedInEpoch"}),
    forward_before_the_intent_is_committed: Found(47, {"ForwardedIsNoted"}),
    begin_before_the_target_is_followed: Found(114, {"ForwarderIsFollowed", "EveryDelayFiresOnce"}),
    forward_the_last_intent_again: Found(20, {"EveryDelayFiresOnce"}),
    leave_a_producer_out_of_snapshots: Found(0, {"ProducersMatchLog"}),
    keep_the_mark_of_a_clean_stop: Found(68, {"LosersLeave"}),
    elect_no_eligible_replica: Found(16, {"EligibleLeads"}),
    remove_tombstones_without_a_bound: Found(10, {"TombstonesWait", "LatestSurvives"}, troubled("table")),
    decide_at_once_on_early_batches: Found(7, {"KeepsItsEpoch", "OrderedOnce", "NoAcknowledgedLoss"}),
    let_unknown_producers_begin_anywhere: Found(12, {"NoAcknowledgedLoss"}, with_new_producers),
    believe_pages_after_a_failed_sync: Found(7, LOST),
    never_trim_followers: Found(0, {"ClusterSettles"}, troubled("deletions")),
    believe_a_shorter_log_above_the_high_watermark: Found(24, LOST, with_dropped_writes),
}


PLANTS = all_but(PLANTED, decide_at_once_on_early_batches)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    PLANTED[plant].check(SEEDS)
