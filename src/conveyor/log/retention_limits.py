"""Retention: which segments a log may delete, by age, size, settlement or request. Pure; `Log` deletes them.

Whole segments are deleted, from the start of the log, and never one that is active or not yet safe. Between segment
boundaries only the log start offset moves (DeleteRecords).
"""

from collections.abc import Sequence
from itertools import pairwise

from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.log.segments.segment import Segment
from conveyor.settings.tree import TopicSettings

FOREVER = -1
"""No limit, as the value of `retention.ms` or `retention.bytes`."""


def retained_from(
    segments: Sequence[Segment],
    log_start_offset: int,
    topic: TopicSettings,
    limit_offset: int,
    now_ms: int,
    settled_offset: int = 0,
) -> int:
    """Return the new log start offset. limit_offset: the high watermark; nothing at or above it is deleted.

    settled_offset: every subscription has settled all messages below it (`cleanup.policy=acknowledged`).
    """
    start = log_start_offset
    excess = sum(segment.size for segment in segments) - topic.retention_bytes
    for segment, following in pairwise(segments):
        if not segment.sealed or following.base_offset > limit_offset:
            break
        is_excess = topic.retention_bytes != FOREVER and excess >= segment.size
        is_expired = "delete" in topic.cleanup_policy and (is_excess or is_too_old(segment, topic, now_ms))
        is_settled = "acknowledged" in topic.cleanup_policy and following.base_offset <= settled_offset
        if following.base_offset > start and not is_expired and not is_settled:
            break
        start = max(start, following.base_offset)
        excess -= segment.size
    return start


def is_too_old(segment: Segment, topic: TopicSettings, now_ms: int) -> bool:
    """Return whether all records of a segment are older than `retention.ms`.

    If no record has a timestamp (-1), the time of the last append counts, as the file's modification time does in
    Kafka.
    """
    newest_ms = segment.last_append_ms if segment.max_timestamp == NO_TIMESTAMP else segment.max_timestamp
    if topic.retention_ms == FOREVER or newest_ms == NO_TIMESTAMP:
        return False
    return newest_ms < now_ms - topic.retention_ms
