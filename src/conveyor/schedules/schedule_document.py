"""The metadata document of a schedule, in JSON.

    {"topic": "reports", "topic_id": "<UUID>", "cron": "30 7 * * MON-FRI", "time_zone": "Europe/Berlin",
     "payload": "<base64>", "key": "<base64>" or null, "headers": [["name", "<base64>" or null], ...],
     "paused": false, "fired_ms": 1700000000000, "owner": "User:alice"}

`fired_ms`: all firings up to this time are done. `owner`: only if there is one.
"""

from base64 import b64decode, b64encode
from uuid import UUID

import msgspec

from conveyor.schedules.definition import Schedule
from conveyor.schedules.firings import Firings


def encode_schedule(firings: Firings, topic_id: UUID) -> str:
    """Return the document of a schedule and of its progress."""
    schedule = firings.schedule
    document = {
        "topic": schedule.topic,
        "topic_id": str(topic_id),
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "payload": _to_text(schedule.payload),
        "key": _to_text(schedule.key),
        "headers": [[name, _to_text(value)] for name, value in schedule.headers],
        "paused": schedule.paused,
        "fired_ms": firings.fired_ms,
    }
    if schedule.owner:
        document["owner"] = schedule.owner
    return msgspec.json.encode(document).decode()


def decode_schedule(name: str, document: str) -> Firings:
    """Return the schedule and its progress after a start. The log may contain a later firing."""
    fields = msgspec.json.decode(document)
    schedule = Schedule(
        name=name,
        topic=fields["topic"],
        cron=fields["cron"],
        time_zone=fields["time_zone"],
        payload=_to_bytes(fields["payload"]) or b"",
        key=_to_bytes(fields["key"]),
        headers=tuple((header, _to_bytes(value)) for header, value in fields["headers"]),
        paused=fields["paused"],
        owner=fields.get("owner", ""),
    )
    return Firings(schedule, fields["fired_ms"], is_sure=False)


def _to_text(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def _to_bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
