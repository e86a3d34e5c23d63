"""Whether a log is worth compacting, and what of it. Pure.

Compaction goes over sealed segments only, from the start of the log to the high watermark at most, and not over records
younger than `min.compaction.lag.ms`. It is due when the part it has not been over yet is large enough
(`min.cleanable.dirty.ratio`), or old enough (`max.compaction.lag.ms`). Source: KIP-58, KIP-354.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from conveyor.kernel.ids import TopicId
from conveyor.log.segments.segment import Segment
from conveyor.settings.tree import TopicSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBounds:
    """One segment as it goes into a compaction. next_offset: after its last record."""

    base_offset: int
    next_offset: int
    size: int
    last_append_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What one compaction of a log does; plain values, so that another process can do it.

    topic_id: whose directory it is, as hexadecimal digits. first_dirty_offset: earlier compactions have been over
    everything below. max_keys: distinct keys remembered at once.
    """

    directory: str
    topic_id: str
    segments: tuple[SegmentBounds, ...]
    first_dirty_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    max_keys: int


def plan_compaction(
    directory: str,
    topic_id: TopicId,
    segments: Sequence[Segment],
    topic: TopicSettings,
    *,
    cleaned_offset: int,
    limit_offset: int,
    now_ms: int,
    max_keys: int,
) -> CompactionPlan | None:
    """What to do now, or None. limit_offset: nothing at or above it is touched (the high watermark)."""
    cleanable = _cleanable(segments, topic, limit_offset, now_ms)
    dirty = [each for each in cleanable if each.next_offset > cleaned_offset]
    if not dirty or not _is_due(cleanable, dirty, topic, now_ms):
        return None
    return CompactionPlan(
        directory=directory,
        topic_id=topic_id.hex,
        segments=tuple(
            SegmentBounds(
                base_offset=each.base_offset,
                next_offset=each.next_offset,
                size=each.size,
                last_append_ms=each.last_append_ms,
            )
            for each in cleanable
        ),
        first_dirty_offset=cleaned_offset,
        now_ms=now_ms,
        delete_retention_ms=topic.delete_retention_ms,
        segment_bytes=topic.segment_bytes,
        index_interval_bytes=topic.index_interval_bytes,
        max_keys=max_keys,
    )


def _cleanable(segments: Sequence[Segment], topic: TopicSettings, limit_offset: int, now_ms: int) -> list[Segment]:
    cleanable = []
    for segment in segments[:-1]:
        too_young = topic.min_compaction_lag_ms > 0 and segment.max_timestamp > now_ms - topic.min_compaction_lag_ms
        if not segment.sealed or segment.next_offset > limit_offset or too_young:
            break
        cleanable.append(segment)
    return cleanable


def _is_due(cleanable: Sequence[Segment], dirty: Sequence[Segment], topic: TopicSettings, now_ms: int) -> bool:
    total_bytes = sum(each.size for each in cleanable)
    dirty_bytes = sum(each.size for each in dirty)
    if dirty_bytes > topic.min_cleanable_dirty_ratio * total_bytes:
        return True
    return dirty[0].max_timestamp < now_ms - topic.max_compaction_lag_ms
