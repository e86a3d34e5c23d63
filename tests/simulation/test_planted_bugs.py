"""The simulation has teeth: each bug that is planted here breaks the invariant that it should, within so many seeds."""

from collections.abc import Callable

import pytest

from conveyor.broker.hosts.inbox_partition import InboxPartition
from conveyor.log.producers.producer_state import ProducerState
from conveyor.replication.machine_runner import MachineRunner
from conveyor.replication.partition import Partition
from conveyor.testing.simulation.story import play
from conveyor.testing.simulation.story_schedule import make_schedule

SEEDS = 200


def acknowledge_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark rises with what is written, not with what is flushed."""

    def write(self: Partition) -> None:
        plain_write(self)
        if self.offline_reason is None:
            self._advance(self.log.written_offset)

    plain_write = Partition.write
    monkeypatch.setattr(Partition, "write", write)


def forget_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is sent again is not recognised."""
    monkeypatch.setattr(ProducerState, "check", lambda *_: None)


def reply_before_the_record_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator and the queue answer when a record is appended."""
    monkeypatch.setattr(MachineRunner, "_reply_when_safe", lambda self, replies: self._reply(replies, None))


def forward_without_an_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inbox's notes are kept in memory only."""
    monkeypatch.setattr(InboxPartition, "_note", lambda self, note: self.machine.apply(note))


# A power cut takes what was promised: which promise is seen to be broken first is up to the seed.
PLANTED: dict[Callable[[pytest.MonkeyPatch], None], set[str]] = {
    acknowledge_before_the_sync: {
        "NoAcknowledgedLoss",
        "NothingTakenBack",
        "MonotonicHighWatermark",
        "EveryDelayFiresOnce",
        "LatestSurvives",
        "CommittedOffsetsHold",
        "NoResurrectedAck",
    },
    forget_producers: {"OrderedOnce"},
    forward_without_an_intent: {"EveryDelayFiresOnce"},
    reply_before_the_record_is_safe: {"CommittedOffsetsHold", "NoResurrectedAck"},
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        failure = play(make_schedule(seed)).failure
        if failure is not None:
            assert getattr(failure, "invariant", repr(failure)) in PLANTED[plant]
            return
    pytest.fail(f"{SEEDS} seeds have not found it")
