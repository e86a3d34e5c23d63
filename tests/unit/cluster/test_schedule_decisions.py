"""Changes of schedules depend on the image only."""

from uuid import uuid4

import pytest

from conveyor.cluster.changes import SchedulePut, ScheduleRemoved
from conveyor.cluster.image import BrokerImage, ClusterImage
from conveyor.cluster.schedule_decisions import (
    added_schedule,
    completed_firing,
    existing_schedule,
    is_fired_by,
    removed_schedule,
)
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.cluster.topic_decisions import created_topic
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.settings.tree import Settings
from tests.unit.cluster.images import EMPTY, changed, with_brokers, without_topic

LEADER, OTHER = NodeId(1), NodeId(2)


def put(image: ClusterImage, document: str = "old") -> SchedulePut:
    return SchedulePut(name="s", topic_id=image.topics["t"].topic_id, document=document)


def with_topic() -> ClusterImage:
    image = with_brokers(EMPTY, BrokerImage(node_id=LEADER, host="h", port=1))
    return changed(image, *created_topic(image, TopicRequest(name="t"), Settings(), uuid4))


def with_schedule() -> ClusterImage:
    image = with_topic()
    return changed(image, *added_schedule(image, put(image)))


def test_a_name_is_given_to_one_schedule() -> None:
    image = with_schedule()
    assert existing_schedule(image, "s").document == "old"
    with pytest.raises(RequestError) as refused:
        added_schedule(image, put(image))
    assert refused.value.kind is ErrorKind.SCHEDULE_ALREADY_EXISTS


def test_a_removed_schedule_must_exist() -> None:
    assert removed_schedule(with_schedule(), "s") == [ScheduleRemoved(name="s")]
    with pytest.raises(RequestError, match=r"there is no schedule 'r'$") as refused:
        removed_schedule(with_schedule(), "r")
    assert refused.value.kind is ErrorKind.UNKNOWN_SCHEDULE


def test_the_leader_of_the_first_partition_fires() -> None:
    image = with_schedule()
    schedule = existing_schedule(image, "s")
    assert [is_fired_by(image, schedule, node) for node in (LEADER, OTHER)] == [True, False]
    assert not is_fired_by(without_topic(image, "t"), schedule, LEADER)


def test_a_firing_is_recorded_for_an_unchanged_schedule_of_this_broker() -> None:
    image = with_schedule()
    fired = put(image, "fired")
    assert completed_firing(image, "old", fired, LEADER) == [fired]
    assert completed_firing(image, "old", fired, OTHER) == []
    assert completed_firing(changed(image, put(image, "new")), "old", fired, LEADER) == []
    assert completed_firing(with_topic(), "old", fired, LEADER) == []
