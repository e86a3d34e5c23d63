"""What a log may let go of: records that are too old, too many, done with, or deleted on request. Pure; `Log` does it.

Whole segments go, from the start of the log, and never one that is still written or not yet safe. Between segment
boundaries only the log start offset moves (DeleteRecords).
"""

from collections.abc import Sequence
from itertools import pairwise

from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.log.segments.segment import Segment
from conveyor.settings.tree import TopicSettings

FOREVER = -1
"""`retention.ms` or `retention.bytes`: no limit."""


def retained_from(
    segments: Sequence[Segment],
    log_start_offset: int,
    topic: TopicSettings,
    limit_offset: int,
    now_ms: int,
    settled_offset: int = 0,
) -> int:
    """The offset that the log should start at. limit_offset: nothing at or above it is let go (the high watermark).

    settled_offset: below it, every subscription has settled every message (`cleanup.policy=acknowledged`).
    """
    start = log_start_offset
    excess = sum(segment.size for segment in segments) - topic.retention_bytes
    for segment, following in pairwise(segments):
        if not segment.sealed or following.base_offset > limit_offset:
            break
        too_many = topic.retention_bytes != FOREVER and excess >= segment.size
        outlived = "delete" in topic.cleanup_policy and (too_many or is_too_old(segment, topic, now_ms))
        settled = "acknowledged" in topic.cleanup_policy and following.base_offset <= settled_offset
        if following.base_offset > start and not outlived and not settled:
            break
        start = max(start, following.base_offset)
        excess -= segment.size
    return start


def is_too_old(segment: Segment, topic: TopicSettings, now_ms: int) -> bool:
    """Whether every record of a segment is older than `retention.ms`.

    Where no record has a timestamp (-1), the last append counts, as the time of the file's last change does in Kafka.
    """
    newest_ms = segment.last_append_ms if segment.max_timestamp == NO_TIMESTAMP else segment.max_timestamp
    if topic.retention_ms == FOREVER or newest_ms == NO_TIMESTAMP:
        return False
    return newest_ms < now_ms - topic.retention_ms
