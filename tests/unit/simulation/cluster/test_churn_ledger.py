"""The images that the ledger of topics accepts after changes that were acknowledged or got no reply."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from conveyor.cluster.changes import TopicRemoved, fold, topic_put
from conveyor.cluster.image import ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from simulation.clients.churn.churn_ledger import PLAIN, SETTING, ChurnLedger
from simulation.ledger import InvariantBroken

_NODES = (NodeId(1),)
_PARTITION = PartitionImage(leader=NodeId(1), leader_epoch=LeaderEpoch(0), replicas=_NODES, isr=_NODES)
ID = UUID(int=1)


class Tree:
    """A stored image that changes, in place of the metadata store's."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.observers: list[Callable[[ClusterImage, ClusterImage], None]] = []

    def observe(self, changed: Callable[[ClusterImage, ClusterImage], None]) -> None:
        self.observers.append(changed)

    def put(self, partitions: int = 1, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        topic = TopicImage(name=PLAIN, topic_id=TopicId(ID), partitions=(_PARTITION,) * partitions, config=settings)
        self._fold(topic_put(topic))

    def remove(self) -> None:
        self._fold(TopicRemoved(name=PLAIN))

    def _fold(self, change: Any) -> None:
        old, self.image = self.image, fold(self.image, [change], self.image.seq + 1)
        for changed in self.observers:
            changed(old, self.image)


@pytest.fixture
def cluster() -> Any:
    return SimpleNamespace(tree=Tree(), broken=[])


@pytest.fixture
def ledger(cluster: Any) -> ChurnLedger:
    return ChurnLedger(cluster)


def _invariants(cluster: Any) -> list[str]:
    return [broken.invariant for broken in cluster.broken]


def test_an_acknowledged_topic_must_exist(cluster: Any, ledger: ChurnLedger) -> None:
    cluster.tree.put(2)
    ledger.keep(PLAIN, ID, 2)
    assert not cluster.broken
    cluster.tree.remove()
    assert _invariants(cluster) == ["NoLostTopic"]


def test_a_topic_must_not_shrink(cluster: Any, ledger: ChurnLedger) -> None:
    cluster.tree.put(2)
    ledger.keep(PLAIN, ID, 2)
    cluster.tree.put(1)
    assert _invariants(cluster) == ["NoLostTopic"]


def test_a_deleted_topic_must_not_return(cluster: Any, ledger: ChurnLedger) -> None:
    cluster.tree.put()
    ledger.keep(PLAIN, ID, 1)
    ledger.attempt_deletion(PLAIN, ID)
    cluster.tree.remove()
    ledger.confirm_deletion(ID)
    assert not cluster.broken
    cluster.tree.put()
    assert _invariants(cluster) == ["NoResurrectedTopic"]


def test_a_setting_without_a_reply_may_come_later(cluster: Any, ledger: ChurnLedger) -> None:
    cluster.tree.put()
    ledger.keep(PLAIN, ID, 1)
    for value in ("1000001", "1000002"):
        ledger.attempt_setting(PLAIN, value)
    cluster.tree.put(max_message_bytes="1000002")
    ledger.confirm_setting(PLAIN, "1000002")
    cluster.tree.put(max_message_bytes="1000001")
    assert not cluster.broken, f"{SETTING} has the value of the request without a reply"
    cluster.tree.put()
    assert _invariants(cluster) == ["NoLostTopic"]


def test_a_record_names_its_topic(ledger: ChurnLedger) -> None:
    ledger.check_record(ID, b"%s|7" % ID.hex.encode())
    ledger.check_record(ID, b"?|7")
    with pytest.raises(InvariantBroken, match="NoResurrectedTopic"):
        ledger.check_record(ID, b"%s|7" % UUID(int=2).hex.encode())
