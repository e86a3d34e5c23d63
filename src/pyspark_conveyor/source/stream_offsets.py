"""The offsets of a stream, as Spark stores them in the checkpoint. Pure.

    {"orders": {"0": 17, "1": 4}, "@ids": {"orders": "c1c2..."}}

They are the next offsets to read, and the ids of the topics: a topic that was deleted and created again has another id.
No topic can be called "@ids".
"""

from collections.abc import Mapping
from typing import Any

from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.source_options import Bounds

StreamOffset = dict[str, dict[str, Any]]
_IDS = "@ids"


def to_stored(bounds: Bounds, topic_ids: Mapping[str, str]) -> StreamOffset:
    """Return the offsets in the form that the checkpoint contains."""
    stored: StreamOffset = {
        topic: {str(number): offset for number, offset in offsets.items()} for topic, offsets in bounds.items()
    }
    return stored | {_IDS: dict(topic_ids)}


def from_stored(stored: StreamOffset) -> tuple[Bounds, dict[str, str]]:
    """Return the offsets, and the ids of the topics (none from checkpoints of the time before they were stored).

    Raises PipelineError for the offsets of another source.
    """
    try:
        bounds = {
            topic: {int(number): int(offset) for number, offset in offsets.items()}
            for topic, offsets in stored.items()
            if topic != _IDS
        }
        return bounds, dict(stored.get(_IDS, {}))
    except (AttributeError, TypeError, ValueError) as error:
        raise PipelineError(
            "the checkpoint does not hold the offsets of topics: choose another checkpointLocation"
        ) from error


def has_topic_ids(stored: StreamOffset) -> bool:
    """Return whether the data source has stored the offsets, and not Spark's own connector for Kafka."""
    return _IDS in stored


def limited(start: Bounds, end: Bounds, most: int | None) -> Bounds:
    """Return the end bounds of a read of at most `most` records. Partitions contribute in proportion to their size,
    and each with records advances. An end before its start, as of a truncated log, stays: the plan refuses it.
    """
    total = sum(
        max(0, stop - start[topic][number]) for topic, numbers in end.items() for number, stop in numbers.items()
    )
    if most is None or total <= most:
        return end
    share = most / total
    return {
        topic: {number: _toward(start[topic][number], stop, share) for number, stop in numbers.items()}
        for topic, numbers in end.items()
    }


def _toward(start: int, stop: int, share: float) -> int:
    if stop <= start:
        return stop
    return min(stop, start + max(1, int((stop - start) * share)))
