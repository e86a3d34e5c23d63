"""Schedules over HTTP: made, listed, deleted; and what those hear who ask wrongly."""

import pytest

from tests.clients.rest_client import Rest


def test_schedule_is_made_listed_and_deleted(rest: Rest, topic: str) -> None:
    rest.create(topic)
    body = {
        "name": topic,
        "topic": topic,
        "cron": "0 3 * * *",
        "time_zone": "Europe/Berlin",
        "payload": "/wA=",
        "payload_encoding": "base64",
        "headers": {"kind": "report"},
    }
    made = rest.post("/schedules", body)
    assert made.status == 201
    assert made.json == {**body, "key": None, "paused": False, "next_ms": made.json["next_ms"], "owner": None}
    assert rest.get(f"/schedules/{topic}").json["name"] == topic
    assert topic in [each["name"] for each in rest.get("/schedules").json["schedules"]]
    assert rest.post("/schedules", body).problem[:2] == (409, "schedule_already_exists")
    assert rest.delete(f"/schedules/{topic}").status == 204
    for answer in (rest.get(f"/schedules/{topic}"), rest.delete(f"/schedules/{topic}")):
        assert answer.problem[:2] == (404, "unknown_schedule")


def test_schedule_that_is_paused_is_never_due(rest: Rest, topic: str) -> None:
    rest.create(topic)
    made = rest.post("/schedules", {"name": topic, "topic": topic, "cron": "* * * * *", "paused": True})
    assert (made.json["next_ms"], made.json["payload"]) == (None, "")
    assert rest.delete(f"/schedules/{topic}").status == 204


def test_schedule_is_changed_and_paused(rest: Rest, topic: str) -> None:
    rest.create(topic)
    made = rest.post("/schedules", {"name": topic, "topic": topic, "cron": "* * * * *", "key": "k", "payload": "a"})
    changes = {"paused": True, "payload": "/wA=", "payload_encoding": "base64", "headers": {"kind": "report"}}
    changed = rest.patch(f"/schedules/{topic}", {**changes, "key": None})
    assert changed.status == 200
    assert changed.json == {**made.json, **changes, "key": None, "next_ms": None}
    assert rest.get(f"/schedules/{topic}").json == changed.json
    resumed = rest.patch(
        f"/schedules/{topic}", {"paused": False, "cron": "0 3 * * *", "time_zone": "Europe/Berlin"}
    ).json
    assert (resumed["paused"], resumed["cron"], resumed["headers"]) == (False, "0 3 * * *", {"kind": "report"})
    assert resumed["next_ms"] > 0
    assert rest.patch(f"/schedules/{topic}", {"cron": "often"}).problem[:2] == (400, "invalid_schedule")
    assert rest.patch(f"/schedules/{topic}", {"headers": {"a": ["b"] * 1_001}}).problem[:2] == (400, "invalid_request")
    assert rest.patch(f"/schedules/{topic}", {"name": "other"}).problem[:2] == (400, "invalid_request")
    assert rest.patch("/schedules/absent", {"paused": True}).problem[:2] == (404, "unknown_schedule")
    assert rest.delete(f"/topics/{topic}").status == 204
    assert rest.get(f"/schedules/{topic}").problem[:2] == (404, "unknown_schedule")


@pytest.mark.parametrize(
    ("more", "status", "kind", "reason"),
    [
        ({"cron": "often"}, 400, "invalid_schedule", "often"),
        ({"cron": 5}, 400, "invalid_request", "Expected `str`, got `int` - at `$.cron`"),
        ({"time_zone": "Mars/Olympus"}, 400, "invalid_schedule", "Mars/Olympus"),
        ({"topic": "absent"}, 404, "unknown_topic", "topic 'absent' does not exist"),
        ({"name": "a/b"}, 400, "invalid_request", "at `$.name`"),
        ({"payload": "?", "payload_encoding": "base64"}, 400, "invalid_request", "payload is not base64"),
        ({"headers": {"conveyor-priority": "high"}}, 400, "invalid_request", "conveyor-priority is 'high'"),
        ({"headers": dict.fromkeys(map(str, range(1_001)))}, 400, "invalid_request", "<= 1000 - at `$.headers`"),
        ({"headers": {"a": ["b"] * 1_000, "c": None}}, 400, "invalid_request", "1001 headers: at most 1000"),
        ({"zone": "UTC"}, 400, "invalid_request", "Object contains unknown field `zone`"),
    ],
)
def test_schedule_that_makes_no_sense_is_refused(
    rest: Rest, topic: str, more: dict[str, object], status: int, kind: str, reason: str
) -> None:
    rest.create(topic)
    answer = rest.post("/schedules", {"name": topic, "topic": topic, "cron": "* * * * *", **more})
    assert answer.problem[:2] == (status, kind)
    assert reason in answer.problem[2]
