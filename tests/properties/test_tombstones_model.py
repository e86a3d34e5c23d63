"""A deleted key stays deleted on every replica, whatever is compacted while replicas are away, copied, or have
another leader.

The story of a compacted log with many leaders also shows that no replica takes missing records for a divergence.

PROPERTY_EXAMPLES in the environment says how many such stories are told; 60 by default.
"""

import os
from random import Random

import pytest

from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.log.compaction.compaction_plan import CompactionLimits
from conveyor.log.compaction.key_compaction import compact
from conveyor.log.leader_epochs import LeaderEpochs
from conveyor.records.batch import iterate_batches
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import decode_records, encode_batch
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.roles import Follower, Leader
from conveyor.replication.streams import follower_end
from conveyor.settings.tree import TopicSettings
from tests.unit.log.logs import NOW_MS
from tests.unit.replication.streams.pairs import Pair, Replica

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "60"))
MOST_STORIES = 500
"""The stories within which a planted bug must be found."""
STEPS = 60
CALM, RESTLESS, COPYING = (8, 6, 6, 3, 1, 1, 0), (2, 1, 2, 1, 1, 2, 0), (8, 6, 0, 3, 1, 1, 1)
"""The weights of the steps."""
NODES = (NodeId(1), NodeId(2), NodeId(3))
KEYS = (b"a", b"b", b"c", b"d")
TOMBSTONES_STAY_MS = 50
TOPIC = TopicSettings(
    segment_bytes=100, cleanup_policy="compact", min_cleanable_dirty_ratio=0, delete_retention_ms=TOMBSTONES_STAY_MS
)


class Story:
    """Three replicas of a compacted partition, and the dict that they should all become."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.now_ms = NOW_MS
        self.expected: dict[bytes, bytes] = {}
        self.epoch = LeaderEpoch(0)
        self.replicas = {node: Replica(Follower(leader=None, epoch=self.epoch), TOPIC) for node in NODES}
        self.links: dict[NodeId, Pair] = {}
        self.away: NodeId | None = None
        self.lead(NODES[0])

    def play(self) -> None:
        steps = (self.write, self.exchange, self.compact, self.wait, self.cut, self.elect, self.replace)
        for step in self.chance.choices(steps, self.chance.choice((CALM, RESTLESS, COPYING)), k=STEPS):
            step()

    def check(self) -> None:
        """Copy what is missing to all replicas, and compare what they know."""
        for node in NODES:
            self.exchange(node)
        for node in NODES:
            assert content(self.replicas[node]) == self.expected, node

    def lead(self, leader: NodeId) -> None:
        self.epoch, self.leader = LeaderEpoch(self.epoch + 1), leader
        for node, replica in self.replicas.items():
            if node == leader:
                role = Leader(leader=node, epoch=self.epoch, isr=(node,), replicas=NODES)
                replica.partition.assume(role)
            else:
                replica.partition.assume(Follower(leader=leader, epoch=self.epoch))
        for link in self.links.values():
            link.follower.close()
        self.links = {}

    def elect(self) -> None:
        """A replica that has all records leads."""
        end = self.replicas[self.leader].log.log_end_offset
        self.lead(self.chance.choice([node for node in NODES if self.replicas[node].log.log_end_offset == end]))

    def write(self) -> None:
        """Set or delete a key."""
        key, leader = self.chance.choice(KEYS), self.replicas[self.leader]
        value = self.chance.choice((None, None, b"%d" % leader.log.log_end_offset))
        leader.partition.append(own_batch(encode_batch([(self.now_ms, key, value, ())])), self.now_ms)
        leader.settle()
        if value is None:
            self.expected.pop(key, None)
        else:
            self.expected[key] = value

    def exchange(self, node: NodeId | None = None, portions: int | None = None) -> None:
        """Copy everything to one replica, or some portions."""
        node = node or self.chance.choice([node for node in NODES if node != self.away])
        if node == self.leader:
            return
        if node not in self.links:
            self.links[node] = Pair([self.replicas[self.leader]], [self.replicas[node]], node)
        partition, link = self.replicas[self.leader].partition, self.links[node]
        link.throttle.is_open, link.throttle.portions = True, portions
        link.leader.written(partition)
        link.leader.has_offsets(partition)
        link.exchange()

    def replace(self) -> None:
        """A follower begins again, empty, and has copied a part when another replica leads, which is compacted more.
        The process of the follower may have ended in between.
        """
        node, other = self.chance.sample([node for node in NODES if node != self.leader], 2)
        for _ in range(4):
            self.write()
            self.exchange(node)
            self.exchange(other)
            self.compact(other)
            self.wait()
        self.replicas[node] = Replica(Follower(leader=None, epoch=self.epoch), TOPIC)
        self.lead(self.leader)
        self.exchange(other)
        self.exchange(node, portions=self.chance.randint(1, 8))
        if self.chance.random() < 0.5:
            self.links.pop(node).follower.close()
            self.replicas[node].open(self.replicas[node].partition.term.role)
            self.exchange(node, portions=self.chance.randint(1, 8))
        self.lead(other)

    def cut(self) -> None:
        """One replica is away from now on, and another one, if it was, comes back."""
        self.away = self.chance.choice((*NODES, None))
        link = None if self.away is None else self.links.pop(self.away, None)
        if link is not None:
            link.follower.close()

    def compact(self, node: NodeId | None = None) -> None:
        replica = self.replicas[node or self.chance.choice(NODES)]
        limits = CompactionLimits(replica.partition.term.high_watermark, replica.partition.term.tombstones_end_offset)
        plan = replica.log.compaction.plan(limits, self.now_ms, 1_000)
        if plan is not None:
            result = compact(replica.disk, plan)
            swap = replica.log.compaction.begin_swap(result)
            assert swap is not None
            replica.log.compaction.complete_swap(result, swap.run())
            swap.free()

    def wait(self) -> None:
        self.now_ms += TOMBSTONES_STAY_MS + 1


def content(replica: Replica) -> dict[bytes, bytes]:
    """What a reader of the whole log knows."""
    values: dict[bytes, bytes] = {}
    for segment in replica.log.segments.all:
        stored = segment.file.read(0, segment.size)
        for position, header in iterate_batches(stored):
            for record in decode_records(stored[position : position + header.size]):
                assert record.key is not None
                if record.value is None:
                    values.pop(record.key, None)
                else:
                    values[record.key] = record.value
    return values


def told(seed: int) -> Story:
    story = Story(seed)
    story.play()
    story.check()
    return story


def is_violated(seed: int) -> bool:
    try:
        told(seed)
    except AssertionError:
        return True
    return False


def test_a_deleted_key_stays_deleted_on_every_replica() -> None:
    removed = 0
    for seed in range(EXAMPLES):
        removed += any(replica.log.compaction.cleaned_offset > 0 for replica in told(seed).replicas.values())
    assert removed > EXAMPLES / 2


def test_replicas_that_do_not_learn_the_epochs_of_removed_records_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderEpochs, "copy_from", lambda *_: None)
    assert any(is_violated(seed) for seed in range(MOST_STORIES))


def test_copies_that_lack_tombstones_which_another_leader_has_removed_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower_end, "_may_keep_deleted_keys", lambda *_: False)
    assert any(is_violated(seed) for seed in range(MOST_STORIES))


def test_tombstones_that_do_not_wait_for_replicas_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the replicas would be copied again."""
    monkeypatch.setattr(follower_end, "_may_keep_deleted_keys", lambda *_: False)
    monkeypatch.setattr(LeaderTerm, "tombstones_end_offset", property(lambda self: self._context.log.log_end_offset))
    assert any(is_violated(seed) for seed in range(MOST_STORIES))
