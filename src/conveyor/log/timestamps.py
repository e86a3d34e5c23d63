"""How far a producer's timestamps may be from the broker's time. Source: KIP-937."""

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Bytes
from conveyor.kernel.settings import TopicSettings
from conveyor.log.records import decode_records

NO_LIMIT = (1 << 63) - 1


def check_times(batch: Bytes, max_timestamp: int, topic: TopicSettings, now_ms: int) -> None:
    """Raises RequestError (INVALID_TIMESTAMP). Records are looked at only if the topic limits how old they may be."""
    if max_timestamp > now_ms + topic.message_timestamp_after_max_ms:
        raise _too_far(max_timestamp, "after", topic.message_timestamp_after_max_ms)
    if topic.message_timestamp_before_max_ms < NO_LIMIT:
        oldest = min((record.timestamp_ms for record in decode_records(batch)), default=max_timestamp)
        if oldest < now_ms - topic.message_timestamp_before_max_ms:
            raise _too_far(oldest, "before", topic.message_timestamp_before_max_ms)


def _too_far(timestamp_ms: int, side: str, limit_ms: int) -> RequestError:
    return RequestError(
        ErrorKind.INVALID_TIMESTAMP,
        f"timestamp {timestamp_ms} lies more than {limit_ms} ms {side} the broker's time"
        f" (message.timestamp.{side}.max.ms)",
    )
