"""How far a producer's timestamps may be from the broker's time. Source: KIP-937."""

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.settings.tree import TopicSettings

NO_LIMIT = (1 << 63) - 1


def stamps_records(topic: TopicSettings) -> bool:
    """Whether the broker sets the timestamps, whatever a producer says (LogAppendTime)."""
    return topic.message_timestamp_type == "LogAppendTime"


def limits_age(topic: TopicSettings) -> bool:
    """Whether every record's timestamp has to be looked at: a batch's header tells the newest only."""
    return topic.message_timestamp_before_max_ms < NO_LIMIT and not stamps_records(topic)


def check_newest(max_timestamp: int, topic: TopicSettings, now_ms: int) -> None:
    """Check what a batch's header tells. Raises RequestError (INVALID_TIMESTAMP)."""
    if max_timestamp > now_ms + topic.message_timestamp_after_max_ms:
        raise RequestError(ErrorKind.INVALID_TIMESTAMP, _too_far(max_timestamp, "after", topic))


def timestamp_fault(timestamp_ms: int, topic: TopicSettings, now_ms: int) -> str | None:
    """What is wrong with one record's timestamp; None if nothing is."""
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
