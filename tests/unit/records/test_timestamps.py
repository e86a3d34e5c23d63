"""Limits on producers' timestamps."""

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.record import encode_batch, unpacked_records
from conveyor.records.record_checks import check_records
from conveyor.records.timestamps import NO_LIMIT, is_too_new
from conveyor.settings.tree import TopicSettings
from tests.unit.log.logs import NOW_MS

LIMITED = TopicSettings(message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=50)


def check(topic: TopicSettings, *times: int) -> None:
    check_records(*unpacked_records(encode_batch([(time_ms, None, b"", ()) for time_ms in times])), topic, NOW_MS)


@pytest.mark.parametrize("times", [[0], [-100, 50], [50, 0]])
def test_timestamp_within_the_limits_is_taken(times: list[int]) -> None:
    check(LIMITED, *(NOW_MS + time_ms for time_ms in times))


@pytest.mark.parametrize(
    ("times", "side"), [([51], "after"), ([0, 51, 0], "after"), ([-101], "before"), ([0, -101], "before")]
)
def test_timestamp_beyond_a_limit_is_refused(times: list[int], side: str) -> None:
    with pytest.raises(RequestError, match=rf"message\.timestamp\.{side}\.max\.ms") as refused:
        check(LIMITED, *(NOW_MS + time_ms for time_ms in times))
    assert refused.value.kind is ErrorKind.INVALID_TIMESTAMP


def test_timestamps_may_be_as_old_as_they_like_and_an_hour_ahead_by_default() -> None:
    topic = TopicSettings()
    for at_ms in (0, NOW_MS + 3_600_000):
        check(topic, at_ms)
        assert not is_too_new(at_ms, topic, NOW_MS)
    with pytest.raises(RequestError, match=r"message\.timestamp\.after\.max\.ms"):
        check(topic, NOW_MS + 3_600_001)
    assert is_too_new(NOW_MS + 3_600_001, topic, NOW_MS)


def test_any_timestamp_is_taken_without_limits_and_where_the_broker_stamps() -> None:
    for topic in (
        TopicSettings(message_timestamp_after_max_ms=NO_LIMIT),
        TopicSettings(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms=0),
    ):
        check(topic, NOW_MS + 10**12)
        assert not is_too_new(NOW_MS + 10**12, topic, NOW_MS)
