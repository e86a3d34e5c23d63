"""Many events become one entry, in their order."""

from functools import partial
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from conveyor.cluster.changes import Change, ConfigPut, ImageFold, topic_put
from conveyor.cluster.controller.event_batch import MOST_EVENTS, Event, folded_events
from conveyor.cluster.controller.reassignments import Reassignment, reassigned
from conveyor.cluster.controller.registrations import observed_brokers
from conveyor.cluster.image import QUEUE_STATE, ClusterImage, ConfigScope, TopicImage, companion
from conveyor.cluster.metadata_log import MAX_ENTRY_BYTES, LogEntry, encode_entry
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import TopicId
from tests.unit.cluster.controller.clusters import SETTINGS, cluster, first, live, nodes, partition
from tests.unit.cluster.images import EMPTY, changed

IMAGE = cluster(partition([1, 2]))


def to(*target: int) -> partial[list[Change]]:
    request = Reassignment(topic="t", partition=0, target=nodes(*target))
    return partial(reassigned, request=request, settings=SETTINGS)


CANCEL = partial(reassigned, request=Reassignment(topic="t", partition=0, target=None), settings=SETTINGS)


def text(length: int) -> Event:
    """An event whose change cannot be compressed to much less than three quarters of this length."""
    value = Random(length).randbytes(length // 2).hex()
    return lambda _: [ConfigPut(scope=ConfigScope.GROUPS, name="g", texts={"x": value})]


def test_event_decides_on_what_the_events_before_it_have_left() -> None:
    batch = folded_events(IMAGE, [to(3), to(4), CANCEL, CANCEL, to(2)])
    kinds = [outcome and outcome.kind for outcome in batch.outcomes]
    assert kinds == [None, None, None, ErrorKind.NO_REASSIGNMENT_IN_PROGRESS, None]
    assert first(changed(IMAGE, *batch.changes)).replicas == nodes(2)
    assert first(changed(IMAGE, *batch.changes)).partition_epoch == 4


def test_topics_are_copied_once_for_all_events(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    copy = ImageFold._of

    def counted(images: ImageFold, part: str) -> dict[Any, Any]:
        if part not in images._parts:
            copied.append(part)
        return copy(images, part)

    monkeypatch.setattr(ImageFold, "_of", counted)
    before = first(IMAGE)
    assert folded_events(IMAGE, [to(3), to(4), to(2)]).outcomes == (None, None, None)
    assert copied == ["topics"]
    assert first(IMAGE) is before, "the image itself stays as it is"


def test_no_events_are_no_changes() -> None:
    assert folded_events(IMAGE, []).changes == ()
    batch = folded_events(IMAGE, [CANCEL])
    assert (batch.changes, len(batch.outcomes)) == ((), 1)


def test_batch_has_a_thousand_events() -> None:
    batch = folded_events(IMAGE, [to(1, 2)] * (MOST_EVENTS + 1))
    assert len(batch.outcomes) == MOST_EVENTS


def test_events_that_do_not_fit_are_left_for_the_next_entry() -> None:
    events = [text(600_000), text(600_002), text(600_004)]
    batch = folded_events(IMAGE, events)
    assert batch.outcomes == (None,)
    assert len(encode_entry(LogEntry(controller_epoch=1, batch=UUID(int=1), changes=batch.changes))) <= MAX_ENTRY_BYTES
    assert folded_events(IMAGE, events[1:]).outcomes == (None,)


def test_event_that_exceeds_an_entry_alone_is_refused() -> None:
    batch = folded_events(IMAGE, [text(4 * MAX_ENTRY_BYTES), to(3)])
    assert batch.changes == ()
    assert [outcome and outcome.kind for outcome in batch.outcomes] == [ErrorKind.INVALID_REQUEST]


def test_failover_of_a_thousand_topics_with_long_names_fits_into_an_entry() -> None:
    random, image = Random(1), EMPTY
    image = changed(image, *observed_brokers(image, live(*range(1, 10)), SETTINGS))
    puts = []
    for _ in range(1_000):
        name = random.randbytes(117).hex()
        state = partition(random.sample(range(1, 10), 5), leader=1)
        for topic in (name, companion(QUEUE_STATE, name)):
            puts.append(topic_put(TopicImage(name=topic, topic_id=TopicId(uuid4()), partitions=(state,))))
    batch = folded_events(changed(image, *puts), [failover])
    assert batch.outcomes == (None,)
    assert len(batch.changes) == 2_001


def failover(image: ClusterImage) -> list[Change]:
    return observed_brokers(image, live(*range(2, 10)), SETTINGS)
