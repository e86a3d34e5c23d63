"""Limits on producers' timestamps."""

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.record import encode_batch
from conveyor.records.timestamps import NO_LIMIT
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, open_topic_log

LIMITED = TopicSettings(message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=50)


@pytest.mark.parametrize("times", [[0], [-100, 50], [50, 0]])
def test_timestamp_within_the_limits_is_taken(times: list[int]) -> None:
    log = open_topic_log(MemoryDisk(), LIMITED)
    log.append(encode_batch([(NOW_MS + each, None, b"", ()) for each in times]), 0, NOW_MS)


@pytest.mark.parametrize(
    ("times", "side"), [([51], "after"), ([0, 51, 0], "after"), ([-101], "before"), ([0, -101], "before")]
)
def test_timestamp_beyond_a_limit_is_refused(times: list[int], side: str) -> None:
    log = open_topic_log(MemoryDisk(), LIMITED)
    with pytest.raises(RequestError, match=rf"message\.timestamp\.{side}\.max\.ms") as refused:
        log.append(encode_batch([(NOW_MS + each, None, b"", ()) for each in times]), 0, NOW_MS)
    assert refused.value.kind is ErrorKind.INVALID_TIMESTAMP
    assert log.log_end_offset == 0


def test_timestamps_may_be_as_old_as_they_like_and_an_hour_ahead_by_default() -> None:
    log = open_topic_log(MemoryDisk())
    for at_ms in (0, NOW_MS + 3_600_000):
        log.append(encode_batch([(at_ms, None, b"", ())]), 0, NOW_MS)
    with pytest.raises(RequestError, match=r"message\.timestamp\.after\.max\.ms"):
        log.append(encode_batch([(NOW_MS + 3_600_001, None, b"", ())]), 0, NOW_MS)


def test_any_timestamp_is_taken_without_limits_and_where_the_broker_stamps() -> None:
    for topic in (
        TopicSettings(message_timestamp_after_max_ms=NO_LIMIT),
        TopicSettings(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms=0),
    ):
        log = open_topic_log(MemoryDisk(), topic)
        log.append(encode_batch([(NOW_MS + 10**12, None, b"", ())]), 0, NOW_MS)
