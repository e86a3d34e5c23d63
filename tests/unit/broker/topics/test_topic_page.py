"""Pages of topics: every partition appears once, in order, whatever the page size."""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.broker.slices import Slices
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topic_page import Cursor, TopicPage, topic_page
from conveyor.cluster.image import ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from tests.unit.cluster.images import EMPTY, with_topics

NODE = NodeId(1)
PARTITION = PartitionImage(leader=NODE, leader_epoch=LeaderEpoch(0), replicas=(NODE,), isr=(NODE,))


def image_of(**sizes: int) -> ClusterImage:
    topics = [
        TopicImage(name=name, topic_id=TopicId(uuid4()), partitions=(PARTITION,) * size) for name, size in sizes.items()
    ]
    return with_topics(EMPTY, *topics)


def page_of(
    names: Collection[str] | None, start: Cursor | None, limit: int, shows: Callable[[str], bool] = lambda _: True
) -> TopicPage:
    """Return a page of the topics of IMAGE."""
    bugs: list[BaseException] = []
    slices = Slices(ThreadPoolExecutor(1), Tasks(bugs.append))
    page = asyncio.run(topic_page(IMAGE, names, start, limit, slices, shows))
    assert not bugs
    return page


def parts(page: TopicPage) -> list[tuple[str, int]]:
    return [(topic_slice.name, number) for topic_slice in page.slices for number in topic_slice.partitions]


IMAGE = image_of(b=3, a=2, c=1)
EVERYTHING = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]


@given(st.integers(1, 8))
def test_pages_together_are_everything(limit: int) -> None:
    seen: list[tuple[str, int]] = []
    start: Cursor | None = None
    for _ in range(len(EVERYTHING)):
        page = page_of(None, start, limit)
        assert len(parts(page)) <= limit
        seen += parts(page)
        start = page.following
        if start is None:
            break
    assert (seen, start) == (EVERYTHING, None)


def test_a_page_that_ends_with_a_topic_goes_on_with_the_next() -> None:
    assert page_of(None, None, 2).following == Cursor("b", 0)
    assert page_of(None, None, 3).following == Cursor("b", 1)


def test_topics_that_are_named_come_once_each_in_order() -> None:
    assert parts(page_of(["c", "a", "c"], None, 10)) == [("a", 0), ("a", 1), ("c", 0)]


def test_a_name_that_is_not_there_counts_as_a_partition() -> None:
    page = page_of(["a", "aa", "c"], None, 4)
    assert [
        (topic_slice.name, topic_slice.topic is None, len(topic_slice.partitions)) for topic_slice in page.slices
    ] == [
        ("a", False, 2),
        ("aa", True, 0),
        ("c", False, 1),
    ]
    assert page.following is None
    assert page_of(["a", "aa", "c"], None, 3).following == Cursor("c", 0)


def test_a_cursor_whose_topic_is_gone_goes_on_with_the_next_one() -> None:
    assert parts(page_of(None, Cursor("bb", 7), 10)) == [("c", 0)]


def test_a_cursor_behind_a_topics_last_partition_finds_none_of_it() -> None:
    assert parts(page_of(None, Cursor("b", 9), 10)) == [("c", 0)]


@pytest.mark.parametrize("cursor", [Cursor("b", -1), Cursor("c", 0)])
def test_a_cursor_that_no_page_can_have_given_is_refused(cursor: Cursor) -> None:
    with pytest.raises(RequestError) as caught:
        page_of(["a", "b"], cursor, 10)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


def test_a_topic_that_is_not_shown_counts_as_a_missing_one() -> None:
    pages = [page_of(names, None, 2, {"a", "c"}.__contains__) for names in (["b", "c"], ["bb", "c"])]
    assert [parts(page) for page in pages] == [[("c", 0)]] * 2
    assert [page.following for page in pages] == [None] * 2
