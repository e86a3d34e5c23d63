"""The typed changes: the effect of each on an image, and the changes that rebuild a whole image."""

from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.cluster.changes import (
    _CARRY_OUT,
    BrokerRegistered,
    BrokerRemoved,
    Change,
    ClusterNamed,
    ConfigPut,
    ImageFold,
    PartitionChanged,
    ProducerIdsTaken,
    QuotasPut,
    SchedulePut,
    ScheduleRemoved,
    SubscriptionPut,
    SubscriptionRemoved,
    TopicPut,
    TopicRemoved,
    fold,
    partition_changed,
    topic_put,
    whole_image,
)
from conveyor.cluster.image import ClusterImage, ConfigScope, PartitionImage
from conveyor.kernel.ids import LeaderEpoch, NodeId
from tests.unit.cluster.image_strategies import CHANGES, ENTRIES
from tests.unit.cluster.images import EMPTY, changed

TOPIC_ID = UUID(int=1)
ONE, TWO = NodeId(1), NodeId(2)
STATE = PartitionImage(ONE, LeaderEpoch(0), (ONE, TWO), (ONE,))
OTHER_STATE = PartitionImage(TWO, LeaderEpoch(1), (ONE, TWO), (TWO,))
TOPIC = TopicPut(name="t", topic_id=TOPIC_ID, config={"segment.ms": "5"}, partitions=(STATE, STATE))


@pytest.mark.slow
@given(st.lists(ENTRIES, max_size=4))
def test_image_is_made_again_of_its_changes(entries: list[tuple[Change, ...]]) -> None:
    image = ClusterImage()
    for seq, entry in enumerate(entries, 1):
        image = fold(image, entry, seq)
    assert fold(ClusterImage(), whole_image(image), image.seq) == image
    assert image.names_by_id == {topic.topic_id: topic.name for topic in image.topics.values()}


@pytest.mark.slow
@given(ENTRIES, st.lists(ENTRIES, max_size=4))
def test_steps_of_one_fold_give_the_images_of_a_fold_for_each(
    first: tuple[Change, ...], entries: list[tuple[Change, ...]]
) -> None:
    before = image = fold(ClusterImage(), first, 1)
    images = ImageFold(before)
    for seq, entry in enumerate(entries, 2):
        image = fold(image, entry, seq)
        assert images.image_after(entry, seq) == image
    assert before == fold(ClusterImage(), first, 1)


@given(ENTRIES, CHANGES)
def test_change_leaves_the_image_before_as_it_was(entry: tuple[Change, ...], change: Change) -> None:
    before, again = fold(ClusterImage(), entry, 1), fold(ClusterImage(), entry, 1)
    fold(before, [change], 2)
    assert before == again


@given(ENTRIES)
def test_entry_is_carried_out_as_its_changes_one_by_one(entry: tuple[Change, ...]) -> None:
    image = ClusterImage()
    for change in entry:
        image = fold(image, [change], 1)
    assert fold(ClusterImage(), entry, 1) == (image if entry else fold(ClusterImage(), (), 1))


def test_every_change_can_be_carried_out_and_stored() -> None:
    classes = set(get_args(Change))
    assert classes == _CARRY_OUT.keys()
    assert len({change_class.__struct_config__.tag for change_class in classes}) == len(classes)


def test_parts_that_do_not_change_are_shared() -> None:
    image = changed(EMPTY, TOPIC)
    after = changed(image, ProducerIdsTaken(next_producer_id=5))
    assert after.topics is image.topics
    assert (after.seq, after.next_producer_id) == (image.seq + 1, 5)


def test_topic_comes_and_goes() -> None:
    image = changed(EMPTY, TOPIC)
    assert topic_put(image.topics["t"]) == TOPIC
    assert dict(changed(image, TopicRemoved(name="t")).names_by_id) == {}
    assert changed(image, TopicRemoved(name="unknown")).topics == image.topics


def test_topic_image_does_not_share_the_settings_of_its_change() -> None:
    image = changed(EMPTY, TOPIC)
    topic_put(image.topics["t"]).config["segment.ms"] = "6"
    assert image.topics["t"].config == {"segment.ms": "5"}


def test_one_partition_changes() -> None:
    image = changed(EMPTY, TOPIC, PartitionChanged(topic="t", partition=1, state=OTHER_STATE))
    first, second = image.topics["t"].partitions
    assert (first.leader, second.leader, second.leader_epoch, second.isr) == (1, 2, 1, (2,))
    assert partition_changed("t", 1, second).state == OTHER_STATE
    assert image.topics["t"].config == {"segment.ms": "5"}


@pytest.mark.parametrize(("topic", "partition"), [("unknown", 0), ("t", 2), ("t", -1)])
def test_change_of_an_unknown_partition_is_left_out(topic: str, partition: int) -> None:
    image = changed(EMPTY, TOPIC)
    after = changed(image, PartitionChanged(topic=topic, partition=partition, state=OTHER_STATE))
    assert after.topics == image.topics


def test_brokers_come_and_go() -> None:
    image = changed(EMPTY, BrokerRegistered(node_id=2, host="h", port=1), BrokerRegistered(node_id=1, host="h", port=2))
    assert image.controller_id == 1
    assert list(changed(image, BrokerRemoved(node_id=1), BrokerRemoved(node_id=7)).brokers) == [2]


def test_subscriptions_and_schedules_come_and_go() -> None:
    image = changed(
        EMPTY,
        SubscriptionPut(name="s", subscription_id=UUID(int=2), topic_id=TOPIC_ID, document="{}"),
        SchedulePut(name="d", topic_id=TOPIC_ID, document="{}"),
    )
    assert (image.subscriptions["s"].subscription_id, image.schedules["d"].topic_id) == (UUID(int=2), TOPIC_ID)
    after = changed(image, SubscriptionRemoved(name="s"), ScheduleRemoved(name="d"))
    assert (after.subscriptions, after.schedules) == ({}, {})


def test_owner_without_values_is_gone() -> None:
    quotas = QuotasPut(entity=(("user", None),), values={"request_percentage": 1.0})
    config = ConfigPut(scope=ConfigScope.GROUPS, name="g", texts={"a": "b"})
    image = changed(EMPTY, quotas, config)
    assert (len(image.quotas), len(image.configs)) == (1, 1)
    after = changed(
        image, QuotasPut(entity=quotas.entity, values={}), ConfigPut(scope=config.scope, name="g", texts={})
    )
    assert (after.quotas, after.configs) == ({}, {})


def test_cluster_is_named() -> None:
    assert changed(ClusterImage(), ClusterNamed(cluster_id="x")).cluster_id == "x"
