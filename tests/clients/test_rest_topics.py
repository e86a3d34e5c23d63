"""`/topics` over HTTP: made, listed, shown, changed, deleted; and what is said to those who ask wrongly."""

import pytest

from tests.clients.rest_client import Rest


def test_topic_is_made_shown_and_deleted(rest: Rest, topic: str) -> None:
    made = rest.post("/topics", {"name": topic, "partitions": 3, "config": {"retention.ms": 60_000}})
    assert (made.status, made.headers["Content-Type"]) == (201, "application/json")
    shown = rest.get(f"/topics/{topic}").json
    assert {name: shown[name] for name in made.json} == made.json
    assert made.json == {
        "name": topic,
        "topic_id": made.json["topic_id"],
        "partitions": 3,
        "internal": False,
        "config": {"retention.ms": "60000"},
    }
    assert shown["effective_config"]["retention.ms"] == "60000"
    assert shown["effective_config"]["cleanup.policy"] == "delete"
    assert [each["high_watermark"] for each in shown["partition_states"]] == [0, 0, 0]
    assert made.json in rest.get("/topics").json["topics"]
    assert rest.delete(f"/topics/{topic}").status == 204
    assert rest.get(f"/topics/{topic}").problem == (404, "unknown_topic", f"topic '{topic}' does not exist")
    assert made.json not in rest.get("/topics").json["topics"]


def test_topic_that_does_not_say_has_the_brokers_defaults(rest: Rest, topic: str) -> None:
    made = rest.post("/topics", {"name": topic})
    assert (made.status, made.json["partitions"], made.json["config"]) == (201, 1, {})


def test_topic_is_changed_where_the_request_says(rest: Rest, topic: str) -> None:
    rest.post("/topics", {"name": topic, "config": {"retention.ms": "1000", "segment.bytes": 4096}})
    changed = rest.patch(f"/topics/{topic}", {"partitions": 2, "config": {"retention.ms": None, "segment.ms": 5000}})
    assert changed.status == 200
    assert (changed.json["partitions"], changed.json["config"]) == (2, {"segment.bytes": "4096", "segment.ms": "5000"})
    assert rest.patch(f"/topics/{topic}", {}).json == changed.json


def test_topic_is_not_changed_by_half(rest: Rest, topic: str) -> None:
    rest.create(topic)
    changed = rest.patch(f"/topics/{topic}", {"partitions": 2, "config": {"retention.hours": 1}})
    assert changed.problem[:2] == (400, "invalid_config")
    assert "unknown topic setting 'retention.hours'" in changed.problem[2]
    assert rest.get(f"/topics/{topic}").json["partitions"] == 1


def test_topic_keeps_its_partitions(rest: Rest, topic: str) -> None:
    rest.create(topic, partitions=3)
    assert rest.patch(f"/topics/{topic}", {"partitions": 2}).problem == (
        400,
        "invalid_partitions",
        f"topic '{topic}' has 3 partitions: ask for more than that",
    )


def test_topic_is_made_once(rest: Rest, topic: str) -> None:
    rest.create(topic)
    again = rest.post("/topics", {"name": topic})
    assert again.problem == (409, "topic_already_exists", f"topic '{topic}' exists already")


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        ({}, "invalid_request", "in the request's body: Object missing required field `name`"),
        ({"name": ""}, "invalid_request", "at `$.name`"),
        ({"name": "a b"}, "invalid_request", "at `$.name`"),
        ({"name": "."}, "invalid_topic", "is not valid: use 1 to 249"),
        ({"name": 5}, "invalid_request", "in the request's body: Expected `str`, got `int` - at `$.name`"),
        ({"name": "a", "partitions": -1}, "invalid_request", "Expected `int` >= 1 - at `$.partitions`"),
        ({"name": "a", "partitions": "3"}, "invalid_request", "Expected `int | null`, got `str` - at `$.partitions`"),
        ({"name": "a", "partition": 3}, "invalid_request", "Object contains unknown field `partition`"),
        ({"name": "a", "config": {"colour": "red"}}, "invalid_config", "unknown topic setting 'colour': use one of"),
        ({"name": "a", "config": {"retention.ms": -5}}, "invalid_config", "it must be at least -1 ms"),
        ({"name": "a", "config": dict.fromkeys(map(str, range(1_001)), 1)}, "invalid_request", "length <= 1000 - at"),
        ([], "invalid_request", "Expected `object`, got `array`"),
        (b"{", "invalid_request", "the request's body is not JSON"),
        (b"", "invalid_request", "Object missing required field `name`"),
    ],
)
def test_topic_that_makes_no_sense_is_refused(rest: Rest, body: object, kind: str, reason: str) -> None:
    status, answered_kind, detail = rest.post("/topics", body).problem
    assert (status, answered_kind) == (400, kind)
    assert reason in detail


def test_topic_that_is_not_there_is_not_changed(rest: Rest) -> None:
    for answer in (rest.patch("/topics/absent", {}), rest.delete("/topics/absent"), rest.get("/topics/absent")):
        assert answer.problem == (404, "unknown_topic", "topic 'absent' does not exist")


def test_brokers_own_topics_are_shown_to_those_who_ask(rest: Rest) -> None:
    assert not [each for each in rest.get("/topics").json["topics"] if each["internal"]]
    assert rest.get("/topics", internal="true").status == 200
    assert rest.get("/topics", internal="perhaps").problem[:2] == (400, "invalid_request")
