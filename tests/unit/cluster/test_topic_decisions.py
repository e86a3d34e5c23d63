"""A decision on a topic includes its dependents."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from conveyor.cluster.changes import Change, SchedulePut, SubscriptionPut, fold, topic_put
from conveyor.cluster.image import INBOX, OFFSETS_TOPIC, QUEUE_STATE, BrokerImage, ClusterImage, companion
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.cluster.topic_decisions import (
    changed_topic,
    created_topic,
    deleted_topic,
    ensured_companion,
    grown_topic,
    mended_topics,
    missing_inboxes,
    raised_epochs,
)
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from conveyor.settings.tree import Settings, from_sources
from tests.unit.cluster.images import EMPTY, with_brokers

SETTINGS = Settings()
ME = NodeId(1)
DELAYED = TopicRequest(name="t", partitions=2, config={"delay.enable": "true"})


def apply(image: ClusterImage, changes: Sequence[Change]) -> ClusterImage:
    return fold(image, changes, image.seq + 1)


def created(*requests: TopicRequest) -> ClusterImage:
    image = with_brokers(EMPTY, *(BrokerImage(node_id=NodeId(node), host="h", port=node) for node in (1, 2)))
    for request in requests:
        image = apply(image, created_topic(image, request, SETTINGS, uuid4))
    return image


def counts(image: ClusterImage) -> dict[str, int]:
    return {topic.name: len(topic.partitions) for topic in image.topics.values()}


def test_topic_with_delay_comes_with_its_inbox() -> None:
    image = created(DELAYED)
    assert counts(image) == {"t": 2, "__inbox.t": 2}
    assert image.topics["__inbox.t"].partitions == image.topics["t"].partitions


def test_topic_and_inbox_together_keep_the_limit_of_partitions() -> None:
    with pytest.raises(RequestError, match=r"broker\.max_partitions is 3"):
        created_topic(created(), DELAYED, from_sources({"broker.max_partitions": 3}), uuid4)


def test_inbox_whose_name_has_no_room_refuses_its_topic() -> None:
    with pytest.raises(RequestError) as refused:
        created_topic(created(), replace(DELAYED, name="n" * 249), SETTINGS, uuid4)
    assert refused.value.kind is ErrorKind.INVALID_TOPIC


def test_topic_that_gets_delay_gets_its_inbox() -> None:
    image = created(TopicRequest(name="t", partitions=2))
    with_delay = replace(image.topics["t"], config={"delay.enable": "true"})
    assert counts(apply(image, changed_topic(image, "t", lambda _: with_delay, SETTINGS, uuid4)))["__inbox.t"] == 2
    assert changed_topic(image, "t", lambda topic: topic, SETTINGS, uuid4) == []


def test_companions_grow_with_their_topic() -> None:
    image = created(DELAYED)
    image = apply(image, ensured_companion(image, QUEUE_STATE, "t", SETTINGS, uuid4))
    identity = image.topics["__inbox.t"].topic_id
    grown = apply(image, grown_topic(image, "t", 5, None, SETTINGS))
    assert counts(grown) == {"t": 5, "__inbox.t": 5, "__queue_state.t": 5}
    assert grown.topics["__inbox.t"].topic_id == identity
    assert grown.topics["__inbox.t"].partitions == grown.topics["t"].partitions


def test_companion_lies_where_its_topic_does_and_begins_its_own_epochs() -> None:
    image = created(TopicRequest(name="t", assignment={0: [2, 1], 1: [1, 2]}))
    image = apply(image, raised_epochs(image, {(image.topics["t"].topic_id, 1): LeaderEpoch(0)}, ME))
    image = apply(image, ensured_companion(image, QUEUE_STATE, "t", SETTINGS, uuid4))
    partitions = image.topics["__queue_state.t"].partitions
    assert [(partition.leader, partition.replicas, partition.leader_epoch) for partition in partitions] == [
        (2, (2, 1), 0),
        (1, (1, 2), 0),
    ]
    assert ensured_companion(image, QUEUE_STATE, "t", SETTINGS, uuid4) == []


def test_deletion_takes_all_that_goes_with_the_topic() -> None:
    image = created(DELAYED, TopicRequest(name="other"))
    for number, name in enumerate(("t", "other")):
        topic_id = image.topics[name].topic_id
        subscription = SubscriptionPut(name=f"s{number}", subscription_id=uuid4(), topic_id=topic_id, document="")
        image = apply(image, [subscription, SchedulePut(name=f"p{number}", topic_id=topic_id, document="")])
    after = apply(image, deleted_topic(image, "t", image.topics["t"].topic_id))
    assert (list(after.topics), list(after.subscriptions), list(after.schedules)) == (["other"], ["s1"], ["p1"])


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, companion(INBOX, "t")])
def test_brokers_own_topics_cannot_be_deleted(name: str) -> None:
    image = created(DELAYED, TopicRequest(name=OFFSETS_TOPIC))
    with pytest.raises(RequestError) as refused:
        deleted_topic(image, name, image.topics[name].topic_id)
    assert refused.value.kind is ErrorKind.INVALID_TOPIC


def test_a_topic_that_was_created_again_is_not_deleted_in_place_of_the_old_one() -> None:
    before = created(TopicRequest(name="t"))
    again = apply(
        apply(before, deleted_topic(before, "t", before.topics["t"].topic_id)),
        created_topic(ClusterImage(brokers=before.brokers), TopicRequest(name="t"), SETTINGS, uuid4),
    )
    with pytest.raises(RequestError) as refused:
        deleted_topic(again, "t", before.topics["t"].topic_id)
    assert refused.value.kind is ErrorKind.UNKNOWN_TOPIC


def test_defaults_with_delay_give_every_topic_of_clients_an_inbox() -> None:
    image = created(TopicRequest(name="a"), TopicRequest(name="b"), TopicRequest(name=OFFSETS_TOPIC))
    settings = from_sources({"topics.delay_enable": True})
    after = apply(image, missing_inboxes(image, settings, uuid4))
    assert sorted(after.topics.keys() - image.topics.keys()) == ["__inbox.a", "__inbox.b"]
    assert missing_inboxes(after, settings, uuid4) == []


def test_inboxes_of_all_topics_together_keep_the_limit_of_partitions() -> None:
    image = created(TopicRequest(name="a", partitions=2), TopicRequest(name="b", partitions=2))
    settings = from_sources({"topics.delay_enable": True, "broker.max_partitions": 7})
    with pytest.raises(RequestError) as refused:
        missing_inboxes(image, settings, uuid4)
    assert refused.value.kind is ErrorKind.INVALID_PARTITIONS


def test_own_settings_are_mended_where_they_are_wrong() -> None:
    image = created(TopicRequest(name=OFFSETS_TOPIC), TopicRequest(name="t"))
    assert mended_topics(image) == []
    wrong = replace(image.topics[OFFSETS_TOPIC], config={"cleanup.policy": "delete"})
    after = apply(image, [topic_put(wrong)])
    assert apply(after, mended_topics(after)).topics == image.topics


def test_epoch_is_raised_only_from_the_one_that_was_seen() -> None:
    image = created(TopicRequest(name="t", assignment={0: [1], 1: [2]}))
    identity = image.topics["t"].topic_id
    seen = {(identity, 0): LeaderEpoch(0), (identity, 1): LeaderEpoch(0), (TopicId(UUID(int=1)), 0): LeaderEpoch(0)}
    after = apply(image, raised_epochs(image, seen, ME))
    assert [partition.leader_epoch for partition in after.topics["t"].partitions] == [1, 0]
    assert raised_epochs(after, seen, ME) == []
