"""The allowed difference between a producer's timestamps and the broker's time. Source: KIP-937."""

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.settings.tree import TopicSettings

NO_LIMIT = (1 << 63) - 1


def stamps_records(topic: TopicSettings) -> bool:
    """Return whether the broker replaces the producer's timestamps (LogAppendTime)."""
    return topic.message_timestamp_type == "LogAppendTime"


def limits_age(topic: TopicSettings) -> bool:
    """Return whether every record's timestamp must be checked. A batch's header contains only the newest timestamp."""
    return topic.message_timestamp_before_max_ms < NO_LIMIT and not stamps_records(topic)


def is_too_new(max_timestamp: int, topic: TopicSettings, now_ms: int) -> bool:
    """Return whether the newest timestamp in a batch's header is further ahead than the topic allows."""
    return max_timestamp > now_ms + topic.message_timestamp_after_max_ms and not stamps_records(topic)


def check_newest(max_timestamp: int, topic: TopicSettings, now_ms: int) -> None:
    """Check the newest timestamp in a batch's header. Raises RequestError (INVALID_TIMESTAMP)."""
    if is_too_new(max_timestamp, topic, now_ms):
        raise RequestError(ErrorKind.INVALID_TIMESTAMP, _too_far(max_timestamp, "after", topic))


def timestamp_fault(timestamp_ms: int, topic: TopicSettings, now_ms: int) -> str | None:
    """Return the reason why one record's timestamp is invalid; None if it is valid."""
    if timestamp_ms > now_ms + topic.message_timestamp_after_max_ms:
        return _too_far(timestamp_ms, "after", topic)
    if timestamp_ms < now_ms - topic.message_timestamp_before_max_ms and timestamp_ms != NO_TIMESTAMP:
        return _too_far(timestamp_ms, "before", topic)
    return None


def _too_far(timestamp_ms: int, side: str, topic: TopicSettings) -> str:
    limit_ms = topic.message_timestamp_after_max_ms if side == "after" else topic.message_timestamp_before_max_ms
    return (
        f"timestamp {timestamp_ms} lies more than {limit_ms} ms {side} the broker's time"
        f" (message.timestamp.{side}.max.ms)"
    )
