"""A decision on a topic includes its dependents."""

from collections.abc import Sequence
from dataclasses import replace
from secrets import token_urlsafe
from uuid import UUID, uuid4

import pytest

from conveyor.cluster.changes import Change, SchedulePut, SubscriptionPut, fold, partition_changed, topic_put
from conveyor.cluster.controller.image_draft import MOST_BUNDLES
from conveyor.cluster.image import (
    DELAY_STATE,
    OFFSETS_TOPIC,
    QUEUE_STATE,
    BrokerImage,
    ClusterImage,
    TopicImage,
    companion,
)
from conveyor.cluster.metadata_log import LogEntry, encode_entry
from conveyor.cluster.topic_change import ConfigChange, Operation, changed_config, replaced_config
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.cluster.topic_decisions import (
    MOST_DEPENDENTS,
    changed_topic,
    created_topic,
    deleted_topic,
    ensured_companion,
    grown_topic,
    mended_topics,
    raised_epochs,
)
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from conveyor.settings.tree import Settings, from_sources
from tests.unit.cluster.images import EMPTY, with_brokers

SETTINGS = Settings()
ME = NodeId(1)
TARGET = TopicRequest(name="t", partitions=2)
DELAYED = TopicRequest(name="later", config={"delay.target": "t"})


def apply(image: ClusterImage, changes: Sequence[Change]) -> ClusterImage:
    return fold(image, changes, image.seq + 1)


def created(*requests: TopicRequest) -> ClusterImage:
    image = with_brokers(EMPTY, *(BrokerImage(node_id=NodeId(node), host="h", port=node) for node in (1, 2)))
    for request in requests:
        image = apply(image, created_topic(image, request, SETTINGS, uuid4))
    return image


def counts(image: ClusterImage) -> dict[str, int]:
    return {topic.name: len(topic.partitions) for topic in image.topics.values()}


def test_delayed_topic_comes_with_its_state() -> None:
    image = created(TARGET, DELAYED)
    assert counts(image) == {"t": 2, "later": 2, "__delay_state.later": 2}
    for name in ("later", "__delay_state.later"):
        assert image.topics[name].partitions == image.topics["t"].partitions
        assert image.bundle_owner(name) == "t"
    assert [topic.name for topic in image.companions("t")] == ["later", "__delay_state.later"]
    assert image.delayed_topics == {"t": ("later",)}


def test_delayed_topic_and_its_state_together_keep_the_limit_of_partitions() -> None:
    with pytest.raises(RequestError, match=r"broker\.max_partitions is 5"):
        created_topic(created(TARGET), DELAYED, from_sources({"broker.max_partitions": 5}), uuid4)


def test_delayed_topic_stays_one() -> None:
    image = created(TARGET, DELAYED)
    later, target = image.topics["later"], image.topics["t"]
    assert replaced_config(later, {"retention.ms": "5"}, SETTINGS).config == {**later.config, "retention.ms": "5"}
    delete = ConfigChange(name="delay.target", operation=Operation.DELETE)
    assert changed_config(later, [delete], SETTINGS) == later
    for topic, name in ((later, "other"), (target, "later")):
        change = ConfigChange(name="delay.target", operation=Operation.SET, value=name)
        with pytest.raises(RequestError, match="is set when a topic is created, and stays"):
            changed_config(topic, [change], SETTINGS)
    assert changed_topic(image, "t", lambda topic: topic, SETTINGS) == []


def test_delayed_topic_shares_settings_with_its_target() -> None:
    image = created(TARGET, DELAYED)
    change = ConfigChange(name="min.insync.replicas", operation=Operation.SET, value="2")
    after = apply(image, changed_topic(image, "t", lambda topic: changed_config(topic, [change], SETTINGS), SETTINGS))
    later = after.topics["later"]
    assert later.config == {**image.topics["later"].config, "min.insync.replicas": "2"}
    assert changed_config(later, [change], SETTINGS) == later
    assert replaced_config(later, {}, SETTINGS) == later
    for value in ("1", "3"):
        other = ConfigChange(name="min.insync.replicas", operation=Operation.SET, value=value)
        with pytest.raises(RequestError, match="is that of its target 't'"):
            changed_config(later, [other], SETTINGS)
    deleted = replace(change, operation=Operation.DELETE, value=None)
    last = apply(after, changed_topic(after, "t", lambda topic: changed_config(topic, [deleted], SETTINGS), SETTINGS))
    assert last.topics["later"].config == image.topics["later"].config


def test_setting_of_earlier_delayed_topics_says_what_to_use() -> None:
    change = ConfigChange(name="delay.enable", operation=Operation.SET, value="true")
    with pytest.raises(RequestError, match=r"create a topic with delay\.target=<this topic>"):
        changed_config(created(TARGET).topics["t"], [change], SETTINGS)


def test_companions_grow_with_their_topic() -> None:
    image = created(TARGET, DELAYED)
    image = apply(image, ensured_companion(image, QUEUE_STATE, "t", SETTINGS, uuid4))
    identity = image.topics["later"].topic_id
    grown = apply(image, grown_topic(image, "t", 5, None, SETTINGS))
    assert counts(grown) == {"t": 5, "later": 5, "__delay_state.later": 5, "__queue_state.t": 5}
    assert grown.topics["later"].topic_id == identity
    assert grown.topics["later"].partitions == grown.topics["t"].partitions
    with pytest.raises(RequestError, match=r"add partitions to the target \(delay\.target\)"):
        grown_topic(image, "later", 5, None, SETTINGS)


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
    image = created(TARGET, TopicRequest(name="other"))
    image = apply(image, ensured_companion(image, QUEUE_STATE, "t", SETTINGS, uuid4))
    for number, name in enumerate(("t", "other")):
        topic_id = image.topics[name].topic_id
        subscription = SubscriptionPut(name=f"s{number}", subscription_id=uuid4(), topic_id=topic_id, document="")
        image = apply(image, [subscription, SchedulePut(name=f"p{number}", topic_id=topic_id, document="")])
    after = apply(image, deleted_topic(image, "t", image.topics["t"].topic_id))
    assert (list(after.topics), list(after.subscriptions), list(after.schedules)) == (["other"], ["s1"], ["p1"])


def test_topic_with_any_number_of_dependents_is_deleted_in_decisions_that_fit_in_an_entry() -> None:
    image = created(TARGET)
    topic_id = image.topics["t"].topic_id
    puts: list[Change] = []
    for _ in range(MOST_DEPENDENTS + 1):
        puts.append(SubscriptionPut(name=token_urlsafe(190), subscription_id=uuid4(), topic_id=topic_id, document=""))
        puts.append(SchedulePut(name=token_urlsafe(190), topic_id=topic_id, document=""))
    image = apply(image, puts)
    left = []
    while image.topics:
        changes = deleted_topic(image, "t", topic_id)
        encode_entry(LogEntry(controller_epoch=0, changes=tuple(changes), batch=uuid4()))
        image = apply(image, changes)
        left.append((len(image.topics), len(image.subscriptions) + len(image.schedules)))
    assert left == [(1, MOST_DEPENDENTS + 2), (1, 2), (0, 0)]


def test_target_is_deleted_after_its_delayed_topic() -> None:
    image = created(TARGET, DELAYED)
    with pytest.raises(RequestError, match=r"delete the topics with delay\.target=t first") as refused:
        deleted_topic(image, "t", image.topics["t"].topic_id)
    assert refused.value.kind is ErrorKind.POLICY_VIOLATION
    image = apply(image, deleted_topic(image, "later", image.topics["later"].topic_id))
    assert (counts(image), dict(image.delayed_topics)) == ({"t": 2}, {})
    assert apply(image, deleted_topic(image, "t", image.topics["t"].topic_id)).topics == {}


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, companion(DELAY_STATE, "later")])
def test_brokers_own_topics_cannot_be_deleted(name: str) -> None:
    image = created(TARGET, DELAYED, TopicRequest(name=OFFSETS_TOPIC))
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


def test_own_settings_are_mended_where_they_are_wrong() -> None:
    image = created(TopicRequest(name=OFFSETS_TOPIC), TopicRequest(name="t"))
    assert mended_topics(image) == []
    wrong = replace(image.topics[OFFSETS_TOPIC], config={"cleanup.policy": "delete"})
    after = apply(image, [topic_put(wrong)])
    assert apply(after, mended_topics(after)).topics == image.topics


def test_own_settings_of_many_topics_are_mended_in_several_decisions() -> None:
    """A decision fits in an entry, with names that hardly compress."""
    image = created(TopicRequest(name="t"))
    topics = [
        TopicImage(
            name=companion(QUEUE_STATE, token_urlsafe(150)),
            topic_id=TopicId(uuid4()),
            partitions=image.topics["t"].partitions,
            config={"cleanup.policy": "compact"},
        )
        for _ in range(MOST_BUNDLES + 1)
    ]
    image = apply(image, [topic_put(topic) for topic in topics])
    first = mended_topics(image)
    encode_entry(LogEntry(controller_epoch=0, changes=tuple(first), batch=uuid4()))
    second = mended_topics(apply(image, first))
    assert (len(first), len(second)) == (MOST_BUNDLES, 1)
    assert mended_topics(apply(apply(image, first), second)) == []


def test_most_raised_epochs_fit_in_an_entry_whatever_the_names() -> None:
    partition = created(TopicRequest(name="t")).topics["t"].partitions[0]
    changes = [partition_changed(token_urlsafe(186), 0, partition) for _ in range(MOST_BUNDLES)]
    encode_entry(LogEntry(controller_epoch=0, changes=tuple(changes), batch=uuid4()))


def test_epoch_is_raised_only_from_the_one_that_was_seen() -> None:
    image = created(TopicRequest(name="t", assignment={0: [1], 1: [2]}))
    identity = image.topics["t"].topic_id
    seen = {(identity, 0): LeaderEpoch(0), (identity, 1): LeaderEpoch(0), (TopicId(UUID(int=1)), 0): LeaderEpoch(0)}
    after = apply(image, raised_epochs(image, seen, ME))
    assert [partition.leader_epoch for partition in after.topics["t"].partitions] == [1, 0]
    assert raised_epochs(after, seen, ME) == []
