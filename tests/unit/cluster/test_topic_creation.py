"""Valid and invalid requests for a topic, and the assignment of its partitions."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from conveyor.cluster.image import OFFSETS_TOPIC, QUEUE_STATE, BrokerImage, ClusterImage, TopicImage
from conveyor.cluster.placement import Placement
from conveyor.cluster.topic_creation import TopicRequest, check_name, outline_topic, plan_companion, plan_topic
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, TopicId
from conveyor.settings.tree import Settings, from_sources
from tests.unit.cluster.images import EMPTY, with_brokers, with_topics

TOPIC_ID = TopicId(UUID(int=7))


def cluster(*nodes: int) -> ClusterImage:
    return with_brokers(EMPTY, *(BrokerImage(node_id=NodeId(node), host="h", port=node) for node in nodes))


THREE = cluster(3, 1, 2)


def plan(image: ClusterImage = THREE, settings: Settings | None = None, **request: Any) -> TopicImage:
    return plan_topic(image, TopicRequest(**{"name": "t"} | request), settings or Settings(), TOPIC_ID)


def refusal(image: ClusterImage = THREE, settings: Settings | None = None, **request: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        plan(image, settings, **request)
    return refused.value


def replicas(topic: TopicImage) -> list[tuple[int, ...]]:
    return [tuple(partition.replicas) for partition in topic.partitions]


def test_partitions_go_round_the_brokers() -> None:
    assert replicas(plan(partitions=4)) == [(1,), (2,), (3,), (1,)]
    assert replicas(plan(partitions=3, replication_factor=2)) == [(1, 2), (2, 3), (3, 1)]


def test_the_first_replica_leads_and_all_are_in_sync() -> None:
    [partition] = plan(partitions=1, replication_factor=3).partitions
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 0, (1, 2, 3))


def test_the_brokers_defaults_are_taken() -> None:
    settings = from_sources({"broker.num_partitions": 5, "broker.default_replication_factor": 2})
    assert replicas(plan(settings=settings))[-1] == (2, 3)
    assert len(plan(settings=settings).partitions) == 5


def test_the_offsets_topic_has_three_replicas_whatever_is_requested() -> None:
    topic = plan(name=OFFSETS_TOPIC, partitions=1, replication_factor=1)
    assert [len(partition.replicas) for partition in topic.partitions] == [3] * 8


def test_the_offsets_topic_waits_for_enough_brokers() -> None:
    """Embedded metadata cannot have more brokers later, so there it has as many replicas as there are brokers."""
    cluster_settings = from_sources({"broker.metadata": "zookeeper://zk:2181"})
    assert refusal(cluster(1, 2), cluster_settings, name=OFFSETS_TOPIC).kind is ErrorKind.INVALID_REPLICATION_FACTOR
    assert len(plan(cluster(1, 2), name=OFFSETS_TOPIC).partitions[0].replicas) == 2
    one_replica = from_sources({"broker.metadata": "zookeeper://zk:2181", "groups.offsets_replication_factor": 1})
    assert len(plan(cluster(1), one_replica, name=OFFSETS_TOPIC).partitions[0].replicas) == 1


def test_an_assignment_is_taken_as_it_is() -> None:
    assert replicas(plan(assignment={1: [3, 1], 0: [2, 3]})) == [(2, 3), (3, 1)]


def test_settings_are_kept_under_kafkas_names() -> None:
    topic = plan(config={"segment.bytes": "2048", "flush.policy": "os"})
    assert topic.config == {"segment.bytes": "2048", "flush.policy": "os"}
    assert (topic.name, topic.topic_id) == ("t", TOPIC_ID)


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        ({"partitions": 0}, ErrorKind.INVALID_PARTITIONS, "at least 1 partition"),
        ({"partitions": -2}, ErrorKind.INVALID_PARTITIONS, "not -2"),
        ({"partitions": 20_001}, ErrorKind.INVALID_PARTITIONS, "broker.max_partitions is 20000"),
        ({"replication_factor": 4}, ErrorKind.INVALID_REPLICATION_FACTOR, "there are 3 brokers"),
        ({"replication_factor": 0}, ErrorKind.INVALID_REPLICATION_FACTOR, "replication factor 0"),
        ({"assignment": {0: [1], 2: [1]}}, ErrorKind.INVALID_REPLICA_ASSIGNMENT, "0, 1, 2"),
        ({"assignment": {0: [9]}}, ErrorKind.INVALID_REPLICA_ASSIGNMENT, "brokers are"),
        ({"assignment": {0: [1 << 20]}}, ErrorKind.INVALID_REPLICA_ASSIGNMENT, "the id of a gateway"),
        ({"assignment": {0: []}}, ErrorKind.INVALID_REPLICA_ASSIGNMENT, "assigned to"),
        ({"assignment": {0: [1], 1: [1, 2]}}, ErrorKind.INVALID_REPLICA_ASSIGNMENT, "have 1 replicas"),
        ({"assignment": {0: [1, 1]}}, ErrorKind.INVALID_REPLICA_ASSIGNMENT, "assigned to"),
        ({"assignment": {0: [1]}, "partitions": 1}, ErrorKind.INVALID_REQUEST, "either"),
        ({"config": {"nothing": "1"}}, ErrorKind.INVALID_CONFIG, "unknown topic setting 'nothing'"),
        ({"config": {"segment.bytes": "1"}}, ErrorKind.INVALID_CONFIG, "at least 1024"),
        ({"name": "a b"}, ErrorKind.INVALID_TOPIC, "letters, digits"),
    ],
)
def test_an_unsound_request_is_refused(request_: dict[str, Any], kind: ErrorKind, message: str) -> None:
    error = refusal(**request_)
    assert error.kind is kind
    assert message in error.message


def test_words_of_a_list_are_kept_without_blanks() -> None:
    assert plan(config={"cleanup.policy": "delete, compact"}).config == {"cleanup.policy": "delete,compact"}


@pytest.mark.parametrize(("there", "name"), [("col.a", "col_a"), ("col_a", "col.a"), ("a.b_c", "a_b.c")])
def test_a_name_that_differs_in_dots_and_underscores_only_collides(there: str, name: str) -> None:
    error = refusal(with_topics(THREE, plan(name="other"), plan(name=there)), name=name)
    assert error.kind is ErrorKind.INVALID_TOPIC
    assert error.message.startswith(f"topic '{name}' collides with an existing topic, ")
    assert there not in error.message


def test_a_topic_that_is_there_exists_rather_than_collides() -> None:
    both = with_topics(THREE, plan(name="col.a"), plan(name="col_a"))
    assert refusal(both, name="col_a").kind is ErrorKind.TOPIC_ALREADY_EXISTS


def test_the_brokers_own_topics_collide_with_nothing() -> None:
    owner = plan(name="a.b")
    companion = plan_companion(THREE, QUEUE_STATE, owner, Settings(), TOPIC_ID)
    first = with_topics(THREE, companion, plan(name="__consumer.offsets"))
    plan_companion(first, QUEUE_STATE, replace(owner, name="a_b"), Settings(), TOPIC_ID)
    plan(first, name="__queue_state_a_b")
    plan(first, name="__consumer_offsets")


def test_a_topic_is_made_once() -> None:
    assert refusal(with_topics(THREE, plan())).kind is ErrorKind.TOPIC_ALREADY_EXISTS


def test_the_limit_counts_what_is_there_already() -> None:
    settings = from_sources({"broker.max_partitions": 4})
    image = with_topics(THREE, plan(name="other", partitions=3))
    assert len(plan(image, settings, partitions=1).partitions) == 1
    error = refusal(image, settings, partitions=2)
    assert error.kind is ErrorKind.INVALID_PARTITIONS
    assert "there would be 5 partitions" in error.message


def test_outline_of_a_delayed_topic_counts_its_state_and_assigns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    image = with_topics(THREE, plan(name="target", partitions=6_000, replication_factor=2))
    monkeypatch.delattr(Placement, "__init__")
    request = TopicRequest(name="t", config={"delay.target": "target"})
    outline = outline_topic(image, request, Settings(), TOPIC_ID)
    assert (outline.partition_count, outline.replication_factor, outline.added_count) == (6_000, 2, 12_000)
    with pytest.raises(RequestError, match="with 12000 more there would be 20001 partitions") as refused:
        outline_topic(image, request, Settings(), TOPIC_ID, others=2_001)
    assert refused.value.kind is ErrorKind.INVALID_PARTITIONS


def test_topic_is_refused_before_its_replicas_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    image = with_topics(THREE, plan(name="other"))
    monkeypatch.delattr(Placement, "__init__")
    assert refusal(image, partitions=20_000).kind is ErrorKind.INVALID_PARTITIONS
    assert refusal(image, name="n" * 249, config={"delay.target": "other"}).kind is ErrorKind.INVALID_TOPIC
    assert refusal(image, partitions=9_000, replication_factor=4).kind is ErrorKind.INVALID_REPLICATION_FACTOR


TARGETED = with_topics(
    THREE,
    plan(name="target", assignment={0: [2, 1], 1: [1, 3]}, config={"min.insync.replicas": "2"}),
    plan(name="delayed", config={"delay.target": "target"}, image=with_topics(THREE, plan(name="target"))),
    plan(name=OFFSETS_TOPIC),
)


@pytest.mark.parametrize(("partitions", "factor"), [(-1, -1), (2, 2)])
def test_delayed_topic_is_where_its_target_is(partitions: int, factor: int) -> None:
    config = {"delay.target": "target", "retention.ms": "5"}
    topic = plan(TARGETED, config=config, partitions=partitions, replication_factor=factor)
    assert replicas(topic) == [(2, 1), (1, 3)]
    assert [partition.leader for partition in topic.partitions] == [2, 1]
    own = {"delay.target": "target", "flush.policy": "ack", "cleanup.policy": "delete", "retention.ms": "5"}
    own["min.insync.replicas"] = "2"
    assert dict(topic.config) == own


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"delay.target": "none"}, "there is no such topic: create the target first"),
        ({"delay.target": "t"}, "a topic cannot be its own target"),
        ({"delay.target": "delayed"}, "it is a delayed topic itself: use its own target (delay.target)"),
        ({"delay.target": OFFSETS_TOPIC}, "the broker's own topics are neither delayed topics nor their targets"),
        ({"delay.target": "__delay_state.delayed"}, "the broker's own topics are neither"),
        ({"delay.target": "target", "cleanup.policy": "compact"}, "'cleanup.policy' of 't' is delete"),
        ({"delay.target": "target", "flush.policy": "os"}, "'flush.policy' of 't' is ack"),
        ({"delay.target": "target", "min.insync.replicas": "1"}, "is that of its target 'target'"),
        ({"delay.target": "target", "unclean.leader.election.enable": "true"}, "is that of its target"),
        ({"delay.enable": "true"}, "create a topic with delay.target=<this topic>"),
    ],
)
def test_delayed_topic_is_refused(config: dict[str, str], reason: str) -> None:
    error = refusal(TARGETED, config=config)
    assert error.kind is ErrorKind.INVALID_CONFIG
    assert reason in error.message


def test_delayed_topic_has_the_partitions_and_replicas_of_its_target() -> None:
    delayed = {"delay.target": "target"}
    assert refusal(TARGETED, config=delayed, partitions=3).kind is ErrorKind.INVALID_PARTITIONS
    assert refusal(TARGETED, config=delayed, replication_factor=3).kind is ErrorKind.INVALID_REPLICATION_FACTOR
    assert refusal(TARGETED, config=delayed, assignment={0: [1]}).kind is ErrorKind.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("policy", ["acknowledged", "delete,acknowledged"])
def test_delayed_topic_may_delete_what_is_forwarded(policy: str) -> None:
    topic = plan(TARGETED, config={"delay.target": "target", "cleanup.policy": policy})
    assert topic.config["cleanup.policy"] == policy


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249, "__mine"])
def test_a_name_that_kafka_takes_is_taken(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "a b", "ä", "a\n", "../x", "a\0"])
def test_a_name_that_kafka_refuses_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="is not valid") as refused:
        check_name(name)
    assert len(refused.value.message) < 200
