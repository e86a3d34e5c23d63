"""Clusters for the tests of the controller: brokers that come and go, and one topic `t` on them."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from conveyor.cluster.changes import Change, topic_put
from conveyor.cluster.controller.registrations import Registration, observed_brokers
from conveyor.cluster.image import (
    QUEUE_STATE,
    ClusterImage,
    PartitionImage,
    TopicImage,
    companion,
)
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from conveyor.settings.tree import Settings
from tests.unit.cluster.images import EMPTY, changed

SETTINGS = Settings()
TOPIC_ID = TopicId(UUID(int=7))


def nodes(*ids: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, ids))


def registration(node_id: int, epoch: int = 1, **fields: Any) -> Registration:
    """A broker with its first directory, which knows all incarnations up to this one."""
    given: dict[str, Any] = {
        "host": f"host{node_id}",
        "port": 9092,
        "incarnation": f"{node_id}.{epoch}",
        "boot_id": f"boot {node_id}",
        "data_id": f"data {node_id}",
        "past_incarnations": tuple(f"{node_id}.{earlier}" for earlier in range(epoch + 1)),
    }
    return Registration(node_id=NodeId(node_id), broker_epoch=epoch, **(given | fields))


def live(*ids: int) -> list[Registration]:
    return [registration(node_id) for node_id in ids]


def partition(
    replicas: Sequence[int], isr: Sequence[int] | None = None, leader: int | None = None, **fields: Any
) -> PartitionImage:
    """Led by the first member of the ISR in leader epoch 5; the ISR has all replicas."""
    in_sync = replicas if isr is None else isr
    given: dict[str, Any] = {"leader_epoch": LeaderEpoch(5)} | fields
    given |= {name: nodes(*fields[name]) for name in ("elr", "origin", "target") if name in fields}
    return PartitionImage(
        leader=NodeId(in_sync[0] if leader is None else leader),
        replicas=nodes(*replicas),
        isr=nodes(*in_sync),
        **given,
    )


def cluster(
    *partitions: PartitionImage,
    brokers: Sequence[int] = (1, 2, 3, 4),
    config: dict[str, str] | None = None,
    with_companion: bool = False,
) -> ClusterImage:
    topic = TopicImage(name="t", topic_id=TOPIC_ID, partitions=partitions, config=config or {})
    puts: list[Change] = [topic_put(topic)]
    if with_companion:
        identity = TopicId(UUID(int=8))
        puts.append(topic_put(TopicImage(name=companion(QUEUE_STATE, "t"), topic_id=identity, partitions=partitions)))
    registered = changed(EMPTY, *observed_brokers(EMPTY, live(*brokers), SETTINGS))
    return changed(registered, *puts)


def first(image: ClusterImage) -> PartitionImage:
    return image.topics["t"].partitions[0]


def observed(image: ClusterImage, registrations: Sequence[Registration]) -> ClusterImage:
    """The image after these are the live brokers."""
    after = changed(image, *observed_brokers(image, registrations, SETTINGS))
    assert observed_brokers(after, registrations, SETTINGS) == []
    return after


def refused(decide: Any, *arguments: Any) -> ErrorKind:
    with pytest.raises(RequestError) as refusal:
        decide(*arguments)
    return refusal.value.kind


def leadership(state: PartitionImage) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Leader, leader epoch, ISR, ELR."""
    return state.leader, state.leader_epoch, state.isr, state.elr
