"""The documents of schedules in the metadata."""

from uuid import UUID

import msgspec

from conveyor.schedules.definition import Schedule
from conveyor.schedules.firings import Firings
from conveyor.schedules.schedule_document import decode_schedule, encode_schedule

TOPIC_ID = UUID(int=7)
FULL = Schedule(
    name="s",
    topic="t",
    cron="30 7 * * MON-FRI",
    time_zone="Europe/Berlin",
    payload=b"\xff\x00",
    key=b"k",
    headers=(("a", b"b"), ("none", None)),
    paused=True,
)


def test_a_schedule_is_read_back_as_it_was_written() -> None:
    for schedule in (FULL, Schedule(name="s", topic="t", cron="* * * * *")):
        firings = decode_schedule("s", encode_schedule(Firings(schedule, 1_700, is_sure=True), TOPIC_ID))
        assert (firings.schedule, firings.fired_ms, firings.is_sure, firings.failures) == (schedule, 1_700, False, 0)


def test_a_document_has_these_fields() -> None:
    document = msgspec.json.decode(encode_schedule(Firings(FULL, 1_700, is_sure=True), TOPIC_ID))
    assert document == {
        "topic": "t",
        "topic_id": str(TOPIC_ID),
        "cron": "30 7 * * MON-FRI",
        "time_zone": "Europe/Berlin",
        "payload": "/wA=",
        "key": "aw==",
        "headers": [["a", "Yg=="], ["none", None]],
        "paused": True,
        "fired_ms": 1_700,
    }
