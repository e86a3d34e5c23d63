"""Decides whether a log needs compaction, and of which segments. Pure.

Only sealed segments are compacted, from the start of the log up to the last stable offset, and no records younger than
`min.compaction.lag.ms`. Therefore no transaction with records below `cleaned_offset` is open. Tombstones and markers
stay until all replicas have them. Compaction is due when the part that it has not processed yet is large enough
(`min.cleanable.dirty.ratio`) or old enough (`max.compaction.lag.ms`). Source: KIP-58, KIP-354.
"""

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from conveyor.log.segments.segment import Segment
from conveyor.log.tail import Tail
from conveyor.settings.tree import TopicSettings


class SegmentBounds(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a compaction. next_offset: the offset after its last record."""

    base_offset: int
    next_offset: int
    size: int
    last_append_ms: int


class CompactionLimits(NamedTuple):
    """The ends of a compaction. end_offset: the high watermark; it and higher offsets are not touched.
    tombstones_end_offset: all replicas have flushed everything below, so that tombstones and markers may be removed
    there. A replica without a tombstone would keep the older record of its key forever, and one without a marker an
    open transaction.
    """

    end_offset: int
    tombstones_end_offset: int


class CompactionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One compaction of a log, as plain values that another process can execute.

    topic_id: the owner of the directory, in hexadecimal digits.
    truncations_count: how often this log's sealed segments had been truncated. If it has risen when the result arrives,
    the result is discarded.
    first_dirty_offset: earlier compactions have processed everything below.
    tombstones_end_offset: see `CompactionLimits`.
    max_keys: the most distinct keys in memory.
    aborted: the aborted transactions of the whole log, as `aborted_entries` has them.
    last_offsets: int64 numbers; the last offset of each producer's last batch.
    markers: int64 numbers; for each producer whose last batch is a marker, its id and its epoch.
    """

    directory: str
    topic_id: str
    segments: tuple[SegmentBounds, ...]
    first_dirty_offset: int
    tombstones_end_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    max_keys: int
    truncations_count: int = 0
    aborted: bytes = b""
    last_offsets: bytes = b""
    markers: bytes = b""


def plan_compaction(
    tail: Tail,
    *,
    cleaned_offset: int,
    limits: CompactionLimits,
    now_ms: int,
    max_keys: int,
    truncations_count: int = 0,
) -> CompactionPlan | None:
    """Return the compaction of a log that is due, or None."""
    segments, producers, topic = tail.segments.all, tail.producers, tail.topic
    unstable_offset = producers.transactions.first_unstable_offset(limits.end_offset)
    end_offset = limits.end_offset if unstable_offset is None else min(limits.end_offset, unstable_offset)
    cleanable = _cleanable(segments, topic, end_offset, now_ms)
    dirty = [segment for segment in cleanable if segment.next_offset > cleaned_offset]
    if not dirty or not _is_due(cleanable, dirty, topic, now_ms):
        return None
    return CompactionPlan(
        directory=tail.place.path,
        topic_id=tail.place.topic_id.hex,
        segments=tuple(
            SegmentBounds(
                base_offset=segment.base_offset,
                next_offset=segment.next_offset,
                size=segment.size,
                last_append_ms=segment.last_append_ms,
            )
            for segment in cleanable
        ),
        first_dirty_offset=cleaned_offset,
        tombstones_end_offset=limits.tombstones_end_offset,
        now_ms=now_ms,
        delete_retention_ms=topic.delete_retention_ms,
        segment_bytes=topic.segment_bytes,
        index_interval_bytes=topic.index_interval_bytes,
        max_keys=max_keys,
        truncations_count=truncations_count,
        aborted=_aborted(segments),
        last_offsets=array("q", producers.last_offsets(end_offset)).tobytes(),
        markers=array("q", chain.from_iterable(producers.epochs_without_batches())).tobytes(),
    )


def _aborted(segments: Sequence[Segment]) -> bytes:
    """Return the entries of all segments: the marker of a compacted record may be in any later segment."""
    entries = bytearray()
    for segment in segments:
        assert segment.indexes.aborted is not None, (
            f"the aborted transactions of {segment.files.path('log')} are not known"
        )
        entries += segment.indexes.aborted
    return bytes(entries)


def _cleanable(segments: Sequence[Segment], topic: TopicSettings, limit_offset: int, now_ms: int) -> list[Segment]:
    cleanable = []
    for segment in segments[:-1]:
        is_too_young = topic.min_compaction_lag_ms > 0 and segment.max_timestamp > now_ms - topic.min_compaction_lag_ms
        if not segment.sealed or segment.next_offset > limit_offset or is_too_young:
            break
        cleanable.append(segment)
    return cleanable


def _is_due(cleanable: Sequence[Segment], dirty: Sequence[Segment], topic: TopicSettings, now_ms: int) -> bool:
    total_bytes = sum(segment.size for segment in cleanable)
    dirty_bytes = sum(segment.size for segment in dirty)
    if dirty_bytes > topic.min_cleanable_dirty_ratio * total_bytes:
        return True
    return dirty[0].max_timestamp < now_ms - topic.max_compaction_lag_ms
