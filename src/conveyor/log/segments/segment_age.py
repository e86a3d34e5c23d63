"""The age at which the active segment rolls."""

from crc32c import crc32c

from conveyor.log.segments.segment import Segment
from conveyor.settings.tree import TopicSettings


def max_age_ms(segment: Segment, topic: TopicSettings) -> int:
    """Return the age at which a segment rolls. A compacted topic rolls earlier, because an active segment is not
    compacted.

    The jitter is derived from the segment's path: different for each segment, and the same at each call.
    """
    age_ms = topic.segment_ms
    if "compact" in topic.cleanup_policy:
        age_ms = min(age_ms, topic.max_compaction_lag_ms)
    if topic.segment_jitter_ms:
        age_ms -= crc32c(segment.files.path("log").encode()) % min(topic.segment_jitter_ms, age_ms)
    return age_ms
