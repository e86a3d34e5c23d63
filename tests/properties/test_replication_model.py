"""Three replicas through failures and elections: no acknowledged record is lost, no acknowledged deletion is undone,
and in-sync replicas have what is committed.

PROPERTY_EXAMPLES in the environment sets the number of stories. Planted bugs must be found, so that the model is known
to look at what it should.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId
from conveyor.log.log_start import LogStart
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.replica_progress import ReplicaReport
from conveyor.replication.streams import leader_end
from conveyor.replication.streams.leader_end import LeaderEnd
from tests.planted_replication_bugs import (
    commit_below_the_minimum_isr,
    count_reports_of_earlier_epochs,
    ignore_pending_joins,
    join_below_the_epoch_start,
    report_written_as_flushed,
)
from tests.properties.partition_controller import NODES
from tests.properties.replicated_partition import Broker, ReplicatedPartition
from tests.unit.replication.parts import followed

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "150"))
pytestmark = pytest.mark.timeout(max(600, EXAMPLES))
STEPS: dict[str, Callable[[ReplicatedPartition, Broker, int], None]] = {
    "produce": ReplicatedPartition.produce,
    "delete": ReplicatedPartition.delete,
    "settle": ReplicatedPartition.settle,
    "write": ReplicatedPartition.write,
    "observe": ReplicatedPartition.observe,
    "exchange": ReplicatedPartition.exchange,
    "disconnect": ReplicatedPartition.disconnect,
    "crash": ReplicatedPartition.crash,
    "fence": ReplicatedPartition.fence,
    "register": ReplicatedPartition.register,
    "request_join": ReplicatedPartition.request_join,
    "request_leave": ReplicatedPartition.request_leave,
    "decide": ReplicatedPartition.decide,
    "publish": ReplicatedPartition.publish,
    "copy": ReplicatedPartition.copy,
    "purge": ReplicatedPartition.purge,
    "join": ReplicatedPartition.join,
    "leave": ReplicatedPartition.leave,
    "fail_over": ReplicatedPartition.fail_over,
}
OFTEN = ["publish", "copy"] * 4 + ["exchange", "observe", "join"] * 2 + ["fail_over", "purge"]
KINDS = [*OFTEN, *STEPS]
Step = tuple[str, NodeId, int]
STEP = st.tuples(st.sampled_from(KINDS), st.sampled_from(NODES), st.integers(0, 1 << 16))
ONE, TWO, THREE = NODES
SCENES: list[list[Step]] = [
    [],
    [  # An eligible leader has more than it knows to be committed, and a replica has nothing.
        ("request_leave", ONE, 1), ("decide", ONE, 0), ("observe", ONE, 0), ("publish", ONE, 2), ("copy", TWO, 0),
        ("fence", ONE, 0), ("observe", TWO, 0), ("observe", THREE, 0), ("exchange", THREE, 0),
        ("request_join", TWO, 0), ("decide", TWO, 0), ("fence", TWO, 0),
    ],
    [  # A leader leads again after its follower has truncated what it had reported.
        ("publish", ONE, 2), ("copy", THREE, 0), ("fence", ONE, 0), ("observe", TWO, 0), ("observe", THREE, 0),
        ("copy", THREE, 1), ("register", ONE, 0), ("observe", ONE, 0), ("copy", ONE, 1), ("request_join", TWO, 0),
        ("decide", TWO, 0), ("observe", TWO, 0), ("fence", TWO, 0), ("observe", ONE, 0), ("publish", ONE, 2),
    ],
    [  # The same, and the follower has seen nothing of it.
        ("publish", ONE, 2), ("exchange", THREE, 7), ("fence", ONE, 0), ("observe", TWO, 0), ("register", ONE, 0),
        ("observe", ONE, 0), ("copy", ONE, 1), ("request_join", TWO, 0), ("decide", TWO, 0), ("observe", TWO, 0),
        ("fence", TWO, 0), ("observe", ONE, 0), ("publish", ONE, 2), ("settle", THREE, 0), ("exchange", THREE, 0),
    ],
]  # fmt: skip
"""Beginnings of stories that chance alone would hardly tell."""
MOST_STORIES = 400
STORY_STEPS = 80


def play(story: Sequence[Step]) -> ReplicatedPartition:
    """Play one story to its end. Raises AssertionError."""
    world = ReplicatedPartition()
    for kind, node, number in story:
        STEPS[kind](world, world.brokers[node], number)
        world.check()
    world.check_logs_match()
    world.heal()
    return world


def random_story(seed: int) -> list[Step]:
    """A scene, interrupted now and then, and what follows."""
    chance = Random(seed)

    def step() -> Step:
        return chance.choice(KINDS), chance.choice(NODES), chance.randrange(1 << 16)

    story: list[Step] = []
    for planned in chance.choice(SCENES):
        story += [step(), planned] if chance.random() < 0.05 else [planned]
    return story + [step() for _ in range(STORY_STEPS)]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(scene=st.sampled_from(SCENES), story=st.lists(STEP, max_size=STORY_STEPS))
def test_nothing_acknowledged_is_lost(scene: list[Step], story: list[Step]) -> None:
    play([*scene, *story])


def test_the_stories_have_what_they_are_about() -> None:
    seen = Counter[str]()
    for seed in range(100):
        world = play(random_story(seed))
        seen += Counter(
            commits=world.commits,
            acknowledged=len(world.acknowledged),
            elections=world.controller.elections,
            joins=world.joins,
            truncations=world.truncations,
            deletions=world.deletions,
        )
    assert seen["commits"] > 1_000, seen
    assert min(seen["acknowledged"], seen["elections"], seen["joins"], seen["truncations"]) > 100, seen
    assert seen["deletions"] > 100, seen


def join_with_deleted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica joins before it has deleted what its leader has."""

    def may_join(self: LeaderTerm, node: NodeId) -> bool:
        return self.replicas.durable_offset_of(node) >= max(self.high_watermark, self.epoch_start_offset)

    monkeypatch.setattr(LeaderTerm, "may_join", may_join)


def report_a_log_start_that_is_not_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    start = property(lambda self: self.offset, lambda *_: None)
    monkeypatch.setattr(LogStart, "flushed_offset", start, raising=False)


def keep_what_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower is not told that its log continues differently."""
    monkeypatch.setattr(leader_end, "_divergence", lambda *_: None)


def trust_own_flushed_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that starts takes its own flushed records for committed ones."""

    def open_again(self: Broker) -> None:
        plain_open(self)
        followed(self.partition).follow(self.log.flushes.flushed_offset, 0)

    plain_open = Broker.open
    monkeypatch.setattr(Broker, "open", open_again)


def serve_followers_of_an_earlier_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader does not end what followers follow when its epoch changes, and counts their reports."""

    def count(self: LeaderEnd, outbound: Any, report: ReplicaReport) -> None:
        if outbound.partition.leader_term is not None:
            outbound.partition.leader_term.replicas.reported(self.node, report)

    monkeypatch.setattr(LeaderEnd, "_count", count)
    monkeypatch.setattr(LeaderEnd, "changed", lambda *_: False)


@pytest.mark.parametrize(
    "plant",
    [
        ignore_pending_joins,
        join_below_the_epoch_start,
        join_with_deleted_records,
        report_a_log_start_that_is_not_on_the_disk,
        count_reports_of_earlier_epochs,
        keep_what_diverges,
        commit_below_the_minimum_isr,
        trust_own_flushed_records,
        report_written_as_flushed,
        serve_followers_of_an_earlier_epoch,
    ],
)
def test_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(MOST_STORIES):
        try:
            play(random_story(seed))
        except (AssertionError, RequestError) as found:
            print(f"{plant.__name__}: story {seed}: {found}")
            return
    raise AssertionError(f"{MOST_STORIES} stories did not find it")
