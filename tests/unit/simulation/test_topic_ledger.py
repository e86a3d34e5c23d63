"""The images that the ledger of topics accepts after changes that were acknowledged, refused, or got no reply."""

from uuid import UUID

import pytest

from conveyor.cluster.changes import TopicRemoved, fold, topic_put
from conveyor.cluster.image import ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from simulation.ledger import InvariantBroken
from simulation.topic_ledger import Possible, TopicLedger, TopicState

NAME = "orders"
_NODES = (NodeId(0),)
_PARTITION = PartitionImage(leader=NodeId(0), leader_epoch=LeaderEpoch(0), replicas=_NODES, isr=_NODES)
NOTHING = ClusterImage()
FIRST = fold(NOTHING, [topic_put(TopicImage(name=NAME, topic_id=TopicId(UUID(int=1)), partitions=(_PARTITION,)))], 1)
DELETED = fold(FIRST, [TopicRemoved(name=NAME)], 2)


def _created(state: TopicState | None) -> Possible:
    return [TopicState(topic_id=None, partitions=1, config=())] if state is None else []


def _deleted(state: TopicState | None) -> Possible:
    return [] if state is None else [None]


@pytest.fixture
def ledger() -> TopicLedger:
    return TopicLedger([NAME])


def _create(ledger: TopicLedger) -> None:
    ledger.acknowledge(NAME, ledger.attempt(NAME, _created), _created, FIRST)


def test_an_acknowledged_topic_must_exist(ledger: TopicLedger) -> None:
    _create(ledger)
    ledger.observe(FIRST, is_first=False)
    with pytest.raises(InvariantBroken, match="NoLostTopic"):
        ledger.observe(NOTHING, is_first=True)


def test_a_deleted_topic_must_not_return(ledger: TopicLedger) -> None:
    _create(ledger)
    ledger.acknowledge(NAME, ledger.attempt(NAME, _deleted), _deleted, DELETED)
    assert ledger.instance(NAME) is None
    with pytest.raises(InvariantBroken, match="NoResurrectedTopic"):
        ledger.observe(FIRST, is_first=True)


def test_without_a_reply_a_start_shows_the_outcome(ledger: TopicLedger) -> None:
    ledger.attempt(NAME, _created)
    ledger.observe(NOTHING, is_first=False)
    ledger.observe(FIRST, is_first=True)
    instance = ledger.instance(NAME)
    assert instance is not None
    assert instance.topic_id == UUID(int=1)
    with pytest.raises(InvariantBroken, match="NoLostTopic"):
        ledger.observe(NOTHING, is_first=False)


def test_a_refusal_must_match_a_possible_state(ledger: TopicLedger) -> None:
    with pytest.raises(InvariantBroken, match="NoResurrectedTopic"):
        ledger.refuse(NAME, ledger.attempt(NAME, _created), ErrorKind.TOPIC_ALREADY_EXISTS)


def test_a_record_of_another_topic_of_the_name(ledger: TopicLedger) -> None:
    _create(ledger)
    instance = ledger.instance(NAME)
    assert instance is not None
    ledger.check_record(instance, b"?|1")
    ledger.check_record(instance, f"{UUID(int=1)}|1".encode())
    with pytest.raises(InvariantBroken, match="NoResurrectedTopic"):
        ledger.check_record(instance, f"{UUID(int=2)}|1".encode())
