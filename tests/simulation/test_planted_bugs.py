"""Stories with one broker have teeth: each bug that is planted here breaks the invariant that it should, within so many
seeds.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from conveyor.broker.partitions.log_directories import LogDirectories
from conveyor.broker.partitions.reconciler import Reconciler
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.changes import topic_put
from conveyor.cluster.image import TopicImage
from conveyor.cluster.topic_creation import TopicRequest, plan_topic
from conveyor.delay.forwarding import Forwarding
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.ids import ProducerIdentity, TopicId
from conveyor.kernel.state_machine import LogRecord
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.producers.producer_state import ProducerState
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.machine_runner import MachineRunner
from conveyor.replication.replica_progress import ReplicaProgress
from tests.simulation.seeds import Found, Plant, troubled
from tests.simulation.test_planted_cluster_bugs import LOST
from tests.sweep import all_but

SEEDS = 200


def acknowledge_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark rises with what is written, not with what is flushed."""

    def written(self: LeaderTerm) -> None:
        plain_written(self)
        self.advance()

    plain_written = LeaderTerm.written
    monkeypatch.setattr(LeaderTerm, "written", written)
    monkeypatch.setattr(ReplicaProgress, "lowest", lambda self: self._log.written_offset)


def forget_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is sent again is not recognised."""
    monkeypatch.setattr(ProducerState, "check", lambda *_: None)


def reply_before_the_record_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator and the queue answer when a record is appended."""
    monkeypatch.setattr(MachineRunner, "_reply_when_safe", lambda self, replies: self._reply(replies, None))


def forward_without_an_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forwarder's state is kept in memory only."""

    def append_batch(
        self: MachineRunner[Any], records: Sequence[LogRecord], now_ms: int, producer: ProducerIdentity | None = None
    ) -> bool:
        return isinstance(self._machine, Forwarding) or plain_append(self, records, now_ms, producer)

    plain_append = MachineRunner._append_batch
    monkeypatch.setattr(MachineRunner, "_append_batch", append_batch)


def acknowledge_a_topic_before_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation is answered while it is being stored."""

    async def create(self: Topics, _: Caller, request: TopicRequest) -> TopicImage:
        topic = plan_topic(self._metadata.image, request, self.settings, TopicId(self._new_id()))
        answered.append(asyncio.ensure_future(self._metadata.propose(lambda _: [topic_put(topic)])))
        return topic

    answered: list[object] = []
    monkeypatch.setattr(Topics, "create", create)


def open_whatever_lies_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic takes the directories of its name, also those of another topic."""
    monkeypatch.setattr(LogDirectories, "_belongs_to_other_topic", lambda *_, **__: False)
    monkeypatch.setattr(PartitionDirectory, "_check", lambda *_: None)


def append_in_the_epoch_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader does not wait for its next leader epoch to be stored."""

    async def raise_epochs(self: Reconciler) -> None:
        self._epochs_due.clear()

    monkeypatch.setattr(Reconciler, "raise_epochs", raise_epochs)


ALONE = troubled(brokers=1)

# A power cut takes what was promised: which promise is seen to be broken first is up to the seed.
PLANTED: dict[Plant, Found] = {
    acknowledge_before_the_sync: Found(0, LOST | {"LatestSurvives"}, ALONE),
    acknowledge_a_topic_before_its_commit: Found(0, {"NoLostTopic", "WholeBundles"}, troubled("churn", brokers=1)),
    append_in_the_epoch_before: Found(0, {"SingleLeaderPerEpoch"}, ALONE),
    open_whatever_lies_there: Found(184, LOST | {"NoResurrectedTopic", "ClusterSettles"}, troubled("churn", brokers=1)),
    forget_producers: Found(2, {"OrderedOnce"}, ALONE),
    forward_without_an_intent: Found(0, {"EveryDelayFiresOnce", "ForwardedIsNoted"}, ALONE),
    reply_before_the_record_is_safe: Found(0, LOST | {"ForwardedIsNoted"}, ALONE),
}


PLANTS = all_but(PLANTED, forward_without_an_intent)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    PLANTED[plant].check(SEEDS)
