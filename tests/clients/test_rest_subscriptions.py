"""Subscriptions over HTTP: made, listed, shown, changed, deleted, steered; and what those hear who ask wrongly."""

from typing import Any

import pytest

from tests.clients.rest_client import Rest


def payloads(messages: list[dict[str, Any]]) -> list[str]:
    return [each["payload"] for each in messages]


def test_subscription_is_made_with_the_defaults(rest: Rest, topic: str) -> None:
    rest.create(topic)
    made = rest.post(f"/topics/{topic}/subscriptions", {"name": f"{topic}-s"})
    assert made.status == 201
    assert made.json == {
        "name": f"{topic}-s",
        "topic": topic,
        "id": made.json["id"],
        "start": "latest",
        "filter": None,
        "on_filter_error": "deliver",
        "delivery": "at_least_once",
        "ordering": "none",
        "visibility_timeout_ms": 30_000,
        "max_deliveries": 5,
        "retry": {"base_ms": 1000, "factor": 2.0, "cap_ms": 60_000},
        "dead_letter_topic": f"{topic}.dlq",
        "on_expiry": "drop",
        "priority_ageing_ms": 0,
        "fair_by": None,
        "max_in_flight": 100_000,
        "max_in_flight_per_key": 1,
        "paused": False,
        "push": None,
    }


def test_subscription_is_made_with_what_the_request_says(rest: Rest, topic: str) -> None:
    rest.create(topic)
    body = {
        "name": f"{topic}-s",
        "start": "2026-01-31T12:00:00Z",
        "filter": "tag == 'new'",
        "delivery": "exactly_once",
        "ordering": "key",
        "max_deliveries": 0,
        "retry": {"base_ms": 5},
    }
    made = rest.post(f"/topics/{topic}/subscriptions", body)
    assert made.status == 201, made.body
    assert made.json["start"] == "2026-01-31T12:00:00.000Z"
    assert made.json["retry"] == {"base_ms": 5, "factor": 2.0, "cap_ms": 60_000}
    assert [made.json[each] for each in ("filter", "delivery", "ordering", "max_deliveries")] == [
        "tag == 'new'",
        "exactly_once",
        "key",
        0,
    ]


def test_subscription_is_found_by_its_topic_and_by_its_name(rest: Rest, topic: str) -> None:
    name, other = f"{topic}-s", f"{topic}-other"
    rest.create(topic, name)
    rest.create(other)
    by_name, by_topic = rest.get(f"/subscriptions/{name}"), rest.get(f"/topics/{topic}/subscriptions/{name}")
    assert by_name.status == by_topic.status == 200
    assert by_name.json["name"] == by_topic.json["name"] == name
    listed = rest.get(f"/topics/{topic}/subscriptions").json["subscriptions"]
    assert [each["name"] for each in listed] == [name]
    assert listed[0] in rest.get("/subscriptions").json["subscriptions"]
    assert rest.get(f"/topics/{topic}").json["subscriptions"] == [name]
    elsewhere = rest.get(f"/topics/{other}/subscriptions/{name}")
    assert elsewhere.problem == (
        404,
        "unknown_subscription",
        f"topic '{other}' has no subscription '{name}': it belongs to topic '{topic}'",
    )


def test_subscription_shows_how_it_stands(rest: Rest, topic: str) -> None:
    name = f"{topic}-s"
    rest.create(topic, name)
    rest.publish(topic, "a", "b", "c")
    rest.publish(topic, "d", delay="1h")
    leased = rest.lease(name, max_messages=2)
    rest.post(f"/subscriptions/{name}/ack", {"ack_id": leased[0]["ack_id"]})
    shown = rest.get(f"/subscriptions/{name}").json
    assert {each: shown[each] for each in ("depth", "in_flight", "delayed", "dead", "acked", "retried")} == {
        "depth": 1,
        "in_flight": 1,
        "delayed": 1,
        "dead": 0,
        "acked": 1,
        "retried": 0,
    }
    assert shown["oldest_age_ms"] >= 0
    assert shown["ack_rate"] >= 0
    assert shown["retry_rate"] == 0


def test_name_of_a_subscription_is_taken_once_in_the_broker(rest: Rest, topic: str) -> None:
    other = f"{topic}-other"
    rest.create(topic, f"{topic}-s")
    rest.create(other)
    for each in (topic, other):
        status, kind, detail = rest.post(f"/topics/{each}/subscriptions", {"name": f"{topic}-s"}).problem
        assert (status, kind) == (409, "subscription_already_exists")
        assert topic in detail
        assert each in detail


def test_subscription_is_changed_where_the_request_says(rest: Rest, topic: str) -> None:
    name = f"{topic}-s"
    rest.create(topic, name, filter="tag == 'a'", max_deliveries=7)
    changed = rest.patch(f"/subscriptions/{name}", {"filter": None, "retry": {"cap_ms": 5000}})
    assert changed.status == 200
    assert (changed.json["filter"], changed.json["max_deliveries"]) == (None, 7)
    assert changed.json["retry"] == {"base_ms": 1000, "factor": 2.0, "cap_ms": 5000}
    assert rest.patch(f"/topics/{topic}/subscriptions/{name}", {}).json == changed.json


def test_subscription_is_deleted(rest: Rest, topic: str) -> None:
    name = f"{topic}-s"
    rest.create(topic, name)
    assert rest.delete(f"/subscriptions/{name}").status == 204
    assert rest.delete(f"/subscriptions/{name}").problem[:2] == (404, "unknown_subscription")
    assert rest.get(f"/topics/{topic}/subscriptions").json["subscriptions"] == []


@pytest.mark.parametrize(
    ("more", "kind", "reason"),
    [
        ({"name": "a b"}, "invalid_request", "at `$.name`"),
        ({"name": None}, "invalid_request", "Expected `str`, got `null` - at `$.name`"),
        ({"start": "now"}, "invalid_request", "'now' is not a start: write earliest, latest, a time as in 2026-01-31"),
        ({"start": -1}, "invalid_request", "-1 is not a start"),
        ({"filter": "tag =="}, "invalid_filter", "tag =="),
        ({"filter": 5}, "invalid_request", "at `$.filter`"),
        ({"delivery": "twice"}, "invalid_request", "'twice': use one of at_least_once, at_most_once, exactly_once"),
        ({"visibility_timeout_ms": -1}, "invalid_request", "Expected `int` >= 0 - at `$.visibility_timeout_ms`"),
        ({"visibility_timeout_ms": 43_200_001}, "invalid_request", "Expected `int` <= 43200000"),
        ({"visibility_timeout_ms": "30s"}, "invalid_request", "got `str` - at `$.visibility_timeout_ms`"),
        ({"max_deliveries": 1.5}, "invalid_request", "at `$.max_deliveries`"),
        ({"retry": {"base_ms": -1}}, "invalid_request", "at `$.retry.base_ms`"),
        ({"retry": {"base_ms": 5, "cap_ms": 4}}, "invalid_subscription", "retry.cap_ms (4) is below retry.base_ms (5)"),
        ({"retry": {"base": 5}}, "invalid_request", "`base`: use one of base_ms, factor, cap_ms - at `$.retry`"),
        ({"push": {"to": "x"}}, "invalid_request", "Object contains unknown field `to`"),
        ({"colour": "red"}, "invalid_request", "Object contains unknown field `colour`"),
        ({"ordering": "key", "fair_by": "shop"}, "invalid_subscription", "exclude each other"),
    ],
)
def test_subscription_that_makes_no_sense_is_refused(
    rest: Rest, topic: str, more: dict[str, object], kind: str, reason: str
) -> None:
    rest.create(topic)
    status, answered, detail = rest.post(f"/topics/{topic}/subscriptions", {"name": f"{topic}-s", **more}).problem
    assert (status, answered) == (400, kind)
    assert reason in detail
    assert rest.get(f"/topics/{topic}/subscriptions").json["subscriptions"] == []


def test_subscription_of_a_topic_that_is_not_there_is_refused(rest: Rest) -> None:
    assert rest.post("/topics/absent/subscriptions", {"name": "s"}).problem[:2] == (404, "unknown_topic")
    assert rest.get("/topics/absent/subscriptions").problem[:2] == (404, "unknown_topic")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("PATCH", "", {}),
        ("DELETE", "", None),
        ("GET", "/messages", None),
        ("GET", "/peek", None),
        ("POST", "/ack", {"ack_id": "a"}),
        ("POST", "/nack", {"ack_id": "a"}),
        ("POST", "/extend", {"ack_id": "a", "visibility": "5s"}),
        ("POST", "/reject", {"ack_id": "a"}),
        ("POST", "/seek", {"start": "earliest"}),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/purge", None),
        ("POST", "/redrive", {}),
    ],
)
def test_subscription_that_is_not_there_is_not_found(rest: Rest, method: str, path: str, body: object) -> None:
    answer = rest.ask(method, f"/subscriptions/absent{path}", body)
    assert answer.problem[:2] == (404, "unknown_subscription")
    assert "absent" in answer.problem[2]


def test_subscription_goes_back_to_a_place(rest: Rest, topic: str) -> None:
    name = f"{topic}-s"
    rest.create(topic, name)
    rest.publish(topic, "a", "b", "c")
    leased = rest.lease(name)
    assert rest.post(f"/subscriptions/{name}/ack", {"ack_ids": [each["ack_id"] for each in leased]}).status == 200
    assert rest.post(f"/subscriptions/{name}/seek", {"offsets": {"0": 1}}).json["name"] == name
    assert payloads(rest.lease(name)) == ["b", "c"]
    assert rest.post(f"/subscriptions/{name}/seek", {"start": "earliest"}).status == 200
    assert payloads(rest.lease(name)) == ["a", "b", "c"]
    assert rest.post(f"/subscriptions/{name}/seek", {"start": "latest"}).status == 200
    assert rest.lease(name, wait="0s") == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "give the new position as either start or offsets"),
        ({"start": "earliest", "offsets": {"0": 1}}, "give the new position as either start or offsets"),
        ({"offsets": {}}, "at `$.offsets`"),
        ({"offsets": {"first": 1}}, "at `key` in `$.offsets`"),
        ({"offsets": {"0": -1}}, "Expected `int` >= 0"),
        ({"offsets": dict.fromkeys(map(str, range(10_001)), 0)}, "of length <= 10000 - at `$.offsets`"),
        ({"start": -5}, "-5 is not a start"),
    ],
)
def test_seek_to_no_place_is_refused(rest: Rest, topic: str, body: object, reason: str) -> None:
    rest.create(topic, f"{topic}-s")
    status, kind, detail = rest.post(f"/subscriptions/{topic}-s/seek", body).problem
    assert (status, kind) == (400, "invalid_request")
    assert reason in detail


def test_subscription_that_is_paused_hands_nothing_out(rest: Rest, topic: str) -> None:
    name = f"{topic}-s"
    rest.create(topic, name)
    rest.publish(topic, "a")
    assert rest.post(f"/subscriptions/{name}/pause").json["paused"] is True
    assert rest.lease(name, wait="10ms") == []
    assert rest.post(f"/subscriptions/{name}/resume").json["paused"] is False
    assert payloads(rest.lease(name)) == ["a"]


def test_purge_settles_what_waits(rest: Rest, topic: str) -> None:
    name = f"{topic}-s"
    rest.create(topic, name)
    rest.publish(topic, "a", "b")
    assert rest.post(f"/subscriptions/{name}/purge").json == {"purged": 2}
    assert rest.lease(name, wait="0s") == []
    assert len(rest.get(f"/topics/{topic}/messages").json["messages"]) == 2


def test_peek_leases_nothing(rest: Rest, topic: str) -> None:
    name = f"{topic}-s"
    rest.create(topic, name)
    rest.publish(topic, "a", "b", "c")
    rest.lease(name, max_messages=1, client_id="w")
    peeked = rest.get(f"/subscriptions/{name}/peek", max_messages=2).json["messages"]
    assert [(each["payload"], each["state"], each["delivery_count"]) for each in peeked] == [
        ("a", "leased", 1),
        ("b", "available", 0),
    ]
    assert [each["consumer"] for each in peeked] == [
        {"principal": "User:ANONYMOUS", "client_id": "w", "address": "127.0.0.1"},
        None,
    ]
    assert len(rest.post(f"/subscriptions/{name}/peek").json["messages"]) == 3
    assert rest.get(f"/subscriptions/{name}").json["in_flight"] == 1


def test_messages_that_are_not_due_are_listed_by_pages(rest: Rest, topic: str) -> None:
    name = f"{topic}-s"
    rest.create(topic, name)
    rest.publish(topic, "now")
    for delay in ("3h", "2h"):
        assert rest.ask("POST", f"/topics/{topic}/messages?delay={delay}&partition=0", "later").status == 201
    [leased] = rest.lease(name)
    assert rest.post(f"/subscriptions/{name}/nack", {"ack_id": leased["ack_id"], "delay": "1h"}).status == 200
    first = rest.get(f"/subscriptions/{name}/scheduled", limit=2).json
    second = rest.get(f"/subscriptions/{name}/scheduled", limit=2, after=first["next"]).json
    listed = first["messages"] + second["messages"]
    assert [(each["reason"], each["delivery_count"]) for each in listed] == [("backoff", 1), ("delay", 0), ("delay", 0)]
    assert [each["message_id"] for each in listed] == [f"{each['partition']}-{each['offset']}" for each in listed]
    assert listed == sorted(listed, key=lambda each: each["due_ms"])
    assert (second["next"], first["complete"], second["complete"]) == (None, True, True)


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after=x", "after=1-2", "other=1"])
def test_list_of_what_is_not_due_refuses_nonsense(rest: Rest, topic: str, query: str) -> None:
    rest.create(topic, f"{topic}-s")
    answer = rest.ask("GET", f"/subscriptions/{topic}-s/scheduled?{query}")
    assert answer.problem[:2] == (400, "invalid_request")


def test_records_of_a_delayed_topic_are_listed_until_they_are_due(rest: Rest, topic: str) -> None:
    assert rest.post("/topics", {"name": topic}).status == 201
    assert rest.post("/topics", {"name": f"{topic}-later", "config": {"delay.target": topic}}).status == 201
    assert rest.ask("POST", f"/topics/{topic}-later/messages?delay=2h", "later").status == 201
    page = rest.get(f"/topics/{topic}-later/scheduled").json
    assert [(each["reason"], each["delivery_count"]) for each in page["messages"]] == [("delay", 0)]
    status, kind, detail = rest.get(f"/topics/{topic}/scheduled").problem
    assert (status, kind) == (400, "invalid_request")
    assert "is not a delayed topic" in detail


def test_settled_message_shows_when_it_was_settled(rest: Rest, topic: str) -> None:
    name = f"{topic}-s"
    rest.create(topic, name)
    rest.publish(topic, "a")
    [leased] = rest.lease(name)
    path = f"/topics/{topic}/messages/{leased['message_id']}/ack"
    before = rest.get(path).json["subscriptions"][name]
    assert (before["state"], before["delivery_count"], before["settled_ms"]) == ("leased", 1, None)
    rest.post(f"/subscriptions/{name}/ack", {"ack_id": leased["ack_id"]})
    after = rest.get(path).json["subscriptions"][name]
    assert (after["state"], after["delivery_count"], after["due_ms"]) == ("acknowledged", 1, None)
    assert leased["timestamp_ms"] <= after["settled_ms"]
