"""Topics and their partitions, so many partitions at a time, in the order of the topics' names (KIP-966)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.kernel.errors import ErrorKind, RequestError


class Cursor(NamedTuple):
    """Where a page begins: a topic's name, and the first of its partitions."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSlice:
    """Some partitions of one topic; `topic` is None for a name that was asked for and is not there."""

    name: str
    topic: TopicImage | None
    partitions: range = range(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """The slices of a page, and where the next one begins; None after the last."""

    slices: tuple[TopicSlice, ...]
    following: Cursor | None = None


def topic_page(image: ClusterImage, names: Collection[str] | None, start: Cursor | None, limit: int) -> TopicPage:
    """The page from `start` on, with `limit` partitions at most: of the topics named, of all for None.

    A topic in the cursor that is gone by now, when all are asked for, is passed over. Raises RequestError
    (INVALID_REQUEST) for a cursor that no page of this request can have given.
    """
    _check_cursor(names, start)
    first = start or Cursor("", 0)
    wanted = sorted(name for name in set(image.topics if names is None else names) if name >= first.topic)
    slices: list[TopicSlice] = []
    left = limit
    for name in wanted:
        if left <= 0:
            return TopicPage(slices=tuple(slices), following=Cursor(name, 0))
        topic = image.topics.get(name)
        if topic is None:
            slices.append(TopicSlice(name=name, topic=None))
            continue
        begin = first.partition if name == first.topic else 0
        end = min(len(topic.partitions), begin + left)
        slices.append(TopicSlice(name=name, topic=topic, partitions=range(begin, end)))
        if end < len(topic.partitions):
            return TopicPage(slices=tuple(slices), following=Cursor(name, end))
        left -= max(0, end - begin)
    return TopicPage(slices=tuple(slices))


def _check_cursor(names: Collection[str] | None, start: Cursor | None) -> None:
    if start is None:
        return
    if start.partition < 0:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"the cursor's partition is {start.partition}")
    if names is not None and start.topic not in names:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"the cursor's topic '{start.topic}' is not asked for")
