"""Pages of topics and their partitions: a limited number of partitions, in the order of topic names (KIP-966)."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from conveyor.broker.slices import Slices
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.kernel.errors import ErrorKind, RequestError


class Cursor(NamedTuple):
    """The start of a page: a topic's name, and the first of its partitions."""

    topic: str
    partition: int


class TopicSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Some partitions of one topic; `topic` is None for a requested name that does not exist, or is not shown."""

    name: str
    topic: TopicImage | None
    partitions: range = range(0)


class TopicPage(msgspec.Struct, frozen=True, kw_only=True):
    """The slices of a page, and the start of the next one; None after the last."""

    slices: tuple[TopicSlice, ...]
    following: Cursor | None = None


async def topic_page(
    image: ClusterImage,
    names: Collection[str] | None,
    start: Cursor | None,
    limit: int,
    slices: Slices,
    shows: Callable[[str], bool] = lambda _: True,
) -> TopicPage:
    """Return the page from `start` on, with at most `limit` partitions: of the named topics, or of all for None.

    A name that does not exist counts as a partition, and so does that of a topic that the page does not show. None
    stands for all topics that it `shows`.
    When all topics are requested, a deleted topic in the cursor is skipped. Raises RequestError (INVALID_REQUEST) for a
    cursor that this request cannot have returned.
    """
    _check_cursor(names, start)
    first = start or Cursor("", 0)
    found: list[TopicSlice] = []
    left = limit
    wanted = image.topics if names is None else set(names)
    async for name in slices.each(sorted(name for name in wanted if name >= first.topic)):
        topic = image.topics.get(name) if shows(name) else None
        if topic is None and names is None:
            continue
        if left <= 0:
            return TopicPage(slices=tuple(found), following=Cursor(name, 0))
        if topic is None:
            found.append(TopicSlice(name=name, topic=None))
            left -= 1
            continue
        begin = first.partition if name == first.topic else 0
        end = min(len(topic.partitions), begin + left)
        found.append(TopicSlice(name=name, topic=topic, partitions=range(begin, end)))
        if end < len(topic.partitions):
            return TopicPage(slices=tuple(found), following=Cursor(name, end))
        left -= max(0, end - begin)
    return TopicPage(slices=tuple(found))


def _check_cursor(names: Collection[str] | None, start: Cursor | None) -> None:
    if start is None:
        return
    if start.partition < 0:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"the cursor's partition is {start.partition}")
    if names is not None and start.topic not in names:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"the cursor's topic '{start.topic}' is not in the request")
