"""Messages over HTTP: published one by one and in batches, looked at, asked after, taken back."""

import pytest
from confluent_kafka import Consumer, Producer

from conveyor.testing import Broker
from tests.clients.rest_client import Rest


def test_message_is_published_with_what_the_query_asks_for(rest: Rest, topic: str) -> None:
    rest.create(topic, partitions=2)
    query: list[tuple[str, object]] = [("key", "k"), ("tag", "new"), ("priority", 9), ("ttl", "2h"), ("partition", 1)]
    query += [("header", "trace:a:b"), ("header", "trace:c"), ("delay", "5s"), ("dedup_id", "d")]
    answer = rest.ask("POST", f"/topics/{topic}/messages", b"hello", query)
    assert answer.status == 201
    assert answer.json == {"message_id": "1-0", "partition": 1, "offset": 0, "duplicate": False}
    shown = rest.get(f"/topics/{topic}/messages/1-0").json
    assert (shown["payload"], shown["key"], shown["tag"], shown["partition"]) == ("hello", "k", "new", 1)
    assert shown["headers"] == {
        "trace": ["a:b", "c"],
        "conveyor-delay-ms": "5000",
        "conveyor-ttl-ms": "7200000",
        "conveyor-priority": "9",
        "conveyor-tag": "new",
        "conveyor-dedup-id": "d",
    }
    assert "payload_encoding" not in shown


def test_message_is_published_with_what_the_headers_ask_for(rest: Rest, topic: str) -> None:
    rest.create(topic)
    headers = {
        "Content-Type": "image/png",
        "conveyor-key": "k",
        "Conveyor-Deliver-At": "2126-01-01T00:00:00Z",
        "Conveyor-Header": "colour: red",
        "Conveyor-Tag": "old",
    }
    answer = rest.ask("POST", f"/topics/{topic}/messages", b"\x89PNG\xff", {"tag": "new"}, headers)
    assert answer.status == 201
    shown = rest.get(f"/topics/{topic}/messages/{answer.json['message_id']}").json
    assert (shown["payload"], shown["payload_encoding"], shown["key"]) == ("iVBOR/8=", "base64", "k")
    assert shown["headers"] == {
        "colour": "red",
        "conveyor-deliver-at-ms": "4922899200000",
        "conveyor-tag": "new",
    }


def test_message_is_the_one_that_kafka_clients_read(rest: Rest, broker: Broker, topic: str) -> None:
    rest.create(topic)
    rest.ask("POST", f"/topics/{topic}/messages", b"", {"key": "ü", "header": "a:1"})
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    record = consumer.poll(20)
    consumer.close()
    assert record is not None
    assert (record.value(), record.key(), record.headers()) == (b"", "ü".encode(), [("a", b"1")])


def test_message_with_the_same_id_is_published_once(rest: Rest, topic: str) -> None:
    rest.create(topic)
    first, second = (rest.post(f"/topics/{topic}/messages", b"x", dedup_id="a").json for _ in range(2))
    assert second == first | {"duplicate": True}


def test_batch_is_answered_message_by_message(rest: Rest, topic: str) -> None:
    rest.create(topic, partitions=2)
    messages = [
        {"payload": "a", "partition": 0, "headers": {"h": ["1", None, {"base64": "/w=="}]}, "tag": "t"},
        {"payload": "?", "payload_encoding": "base64"},
        {"payload": None, "key": "/w==", "key_encoding": "base64", "partition": 0},
        {"payload": "far", "partition": 7},
    ]
    answer = rest.post(f"/topics/{topic}/messages:batch", {"messages": messages})
    results = answer.json["results"]
    assert answer.status == 200
    assert results[0] == {"status": "ok", "message_id": "0-0", "partition": 0, "offset": 0}
    assert results[2] == {"status": "ok", "message_id": "0-1", "partition": 0, "offset": 1}
    assert (results[1]["status"], results[1]["error"]["status"]) == ("error", 400)
    assert results[1]["error"]["detail"].startswith("payload is not base64")
    assert results[3]["error"]["detail"] == f"topic '{topic}' has partitions 0 to 1, not 7"
    shown = rest.get(f"/topics/{topic}/messages", partition=0).json["messages"]
    assert shown[0]["headers"] == {"h": ["1", None, {"base64": "/w=="}], "conveyor-tag": "t"}
    assert (shown[1]["payload"], shown[1]["key"], shown[1]["key_encoding"]) == (None, "/w==", "base64")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"delay": "5"}, "'5' is not a duration: write a whole number and a unit, as in 1200ms, 5s, 10m, 2h"),
        ({"delay": "-5s"}, "'-5s' is not a duration"),
        ({"priority": "10"}, "query parameter 'priority': Expected `int` <= 9"),
        ({"priority": "high"}, "Expected `int"),
        ({"deliver_at": "tomorrow"}, "'tomorrow' is not a time: write a time as in 2026-01-31T12:00:00Z"),
        ({"header": "colour"}, "query parameter 'header': "),
        ({"tag": ""}, "query parameter 'tag': Expected `str` of length >= 1"),
        ({"colour": "red"}, "unknown query parameter 'colour': use one of dedup_id"),
    ],
)
def test_message_that_asks_for_nonsense_is_refused(
    rest: Rest, topic: str, query: dict[str, object], reason: str
) -> None:
    rest.create(topic)
    status, kind, detail = rest.ask("POST", f"/topics/{topic}/messages", b"x", query).problem
    assert (status, kind) == (400, "invalid_request")
    assert reason in detail
    assert rest.get(f"/topics/{topic}/messages").json["messages"] == []


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Conveyor-Dely": "5s"}, "unknown request header 'Conveyor-Dely': use one of Conveyor-Key, Conveyor-Delay"),
        ({"Conveyor-Delay": "5"}, "in the Conveyor- request headers: '5' is not a duration"),
        ({"Conveyor-Header": "colour"}, "'colour' is not a header: write name:value"),
        ({"Conveyor-Tag": "a", "conveyor-tag": "b"}, "request header 'conveyor-tag' is given more than once"),
    ],
)
def test_request_header_that_makes_no_sense_is_refused(
    rest: Rest, topic: str, headers: dict[str, str], reason: str
) -> None:
    rest.create(topic)
    status, kind, detail = rest.ask("POST", f"/topics/{topic}/messages", b"x", headers=headers).problem
    assert (status, kind) == (400, "invalid_request")
    assert reason in detail


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "Object missing required field `messages`"),
        ({"messages": []}, "Expected `array` of length >= 1 - at `$.messages`"),
        ({"messages": [{}]}, "Object missing required field `payload` - at `$.messages[0]`"),
        ({"messages": [{"payload": 5}]}, "Expected `str | null`, got `int` - at `$.messages[0].payload`"),
        ({"messages": [{"payload": "", "delay": 5}]}, "5 is not a duration"),
        ({"messages": [{"payload": "", "delay": "-5s"}]}, "at `$.messages[0].delay`"),
        ({"messages": [{"payload": "", "payload_encoding": "hex"}]}, "Invalid enum value 'hex'"),
        ({"messages": [{"payload": "", "tags": "x"}]}, "unknown field `tags`: use one of key, delay, "),
        ({"messages": "x"}, "Expected `array`, got `str`"),
    ],
)
def test_batch_that_makes_no_sense_is_refused(rest: Rest, topic: str, body: object, reason: str) -> None:
    rest.create(topic)
    status, kind, detail = rest.post(f"/topics/{topic}/messages:batch", body).problem
    assert (status, kind) == (400, "invalid_request")
    assert reason in detail


def test_message_larger_than_its_topic_takes_is_refused(rest: Rest, topic: str) -> None:
    rest.post("/topics", {"name": topic, "config": {"max.message.bytes": 2000}})
    answer = rest.post(f"/topics/{topic}/messages", b"x" * 2001)
    detail = "the request's body is larger than the limit of 2000 bytes"
    assert answer.problem == (413, "message_too_large", detail)
    assert rest.post(f"/topics/{topic}/messages", b"x" * 1999).problem[:2] == (413, "message_too_large")
    assert rest.post(f"/topics/{topic}/messages", b"x" * 1900).status == 201


def test_message_that_would_hold_everybody_up_is_refused_whatever_its_topic_takes(rest: Rest, topic: str) -> None:
    rest.post("/topics", {"name": topic, "config": {"max.message.bytes": 200_000_000}})
    answer = rest.post(f"/topics/{topic}/messages", bytes((32 << 20) + 1))
    assert answer.problem[:2] == (413, "message_too_large")
    assert rest.post(f"/topics/{topic}/messages", bytes(32 << 20)).status == 201


def test_messages_are_looked_at_from_anywhere(rest: Rest, broker: Broker, topic: str) -> None:
    rest.create(topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(5):
        producer.produce(topic, b"%d" % number, timestamp=1_700_000_000_000 + number)
    assert producer.flush(20) == 0

    def seen(**query: object) -> list[str]:
        return [each["payload"] for each in rest.get(f"/topics/{topic}/messages", **query).json["messages"]]

    assert seen() == seen(from_="earliest") == ["0", "1", "2", "3", "4"]
    assert seen(from_="latest") == []
    assert seen(from_=3) == ["3", "4"]
    assert seen(from_="2023-11-14T22:13:20.002Z") == ["2", "3", "4"]
    assert seen(from_="earliest", partition=0, limit=2) == ["0", "1"]


@pytest.mark.parametrize("query", [{"from": "first"}, {"from": -1}, {"limit": 0}, {"limit": 1001}, {"partition": -1}])
def test_look_at_no_place_is_refused(rest: Rest, topic: str, query: dict[str, object]) -> None:
    rest.create(topic)
    assert rest.ask("GET", f"/topics/{topic}/messages", query=query).problem[:2] == (400, "invalid_request")


def test_message_that_is_not_there_is_not_found(rest: Rest, topic: str) -> None:
    rest.create(topic)
    for message_id in ("0-0", "7-0", "x", "0-"):
        for path in (f"/topics/{topic}/messages/{message_id}", f"/topics/{topic}/messages/{message_id}/ack"):
            assert rest.get(path).problem[:2] == (404, "unknown_message"), path
        assert rest.delete(f"/topics/{topic}/messages/{message_id}").problem[:2] == (404, "unknown_message")
    assert rest.get("/topics/absent/messages/0-0").problem[:2] == (404, "unknown_topic")
    assert rest.get("/topics/absent/messages/0-0/ack").problem[:2] == (404, "unknown_topic")


def test_states_of_a_message_are_told_by_subscription(rest: Rest, topic: str) -> None:
    one, two = f"{topic}-one", f"{topic}-two"
    rest.create(topic, one, two)
    message_id = rest.publish(topic, "x")[0]
    rest.post(f"/subscriptions/{one}/ack", {"ack_id": rest.lease(one)[0]["ack_id"]})
    states = rest.get(f"/topics/{topic}/messages/{message_id}/ack").json
    assert states["message_id"] == message_id
    settled, unleased = states["subscriptions"][one], {"due_ms": None, "consumer": None}
    assert settled.pop("settled_ms") > 0
    assert settled == {"state": "acknowledged", "delivery_count": 1, **unleased}
    assert states["subscriptions"][two] == {"state": "available", "delivery_count": 0, "settled_ms": None, **unleased}


def test_text_that_is_not_utf8_is_refused_in_a_query_and_kept_in_a_header(rest: Rest, topic: str) -> None:
    rest.create(topic)
    path = f"/topics/{topic}/messages"
    for parameter in (
        "key=%ff",
        "tag=a%C3",
        "dedup_id=%ed%a0%80",
        "header=a:%ff",
        "header=%ff:a",
        "%ff=1",
        "key=a&tag=%FE",
    ):
        status, kind, detail = rest.ask("POST", f"{path}?{parameter}", b"x").problem
        assert (status, kind) == (400, "invalid_request")
        assert f"'{parameter.split('&')[-1]}' in the request's path or query is not UTF-8" in detail
    for place in (f"{path}/0-%ff", f"/topics/{topic}%ff", "/subscriptions/%ff/messages?wait=1s", "/schedules/a%c3"):
        assert "is not UTF-8" in rest.get(place).problem[2], place
    assert rest.get(path, from_="earliest").json["messages"] == [], "nothing was published"
    assert rest.ask("POST", f"{path}?key=%EF%BF%BD&tag=%c3%a4&header=100%:%zz", b"x").status == 201
    headers = {"Conveyor-Key": "\xff", "Conveyor-Tag": "\xfe", "Conveyor-Header": "h: \xff"}
    assert rest.ask("POST", path, b"x", headers=headers).status == 201
    text, other = rest.get(path, from_="earliest").json["messages"]
    assert (text["key"], text["tag"], text["headers"]["100%"]) == ("\ufffd", "ä", "%zz")
    assert (other["key"], other["key_encoding"], other["headers"]["h"]) == ("/w==", "base64", {"base64": "/w=="})


def test_header_value_that_is_not_utf8_can_be_named_in_a_problem(rest: Rest, topic: str) -> None:
    for header, status in (("Content-Encoding", 415), ("Expect", 417), ("Origin", 403)):
        answer = rest.ask("POST", f"/topics/{topic}/messages", b"x", headers={header: "\xff"})
        assert answer.problem[0] == status, header
        assert "\\udcff" in answer.problem[2], header


def test_delayed_message_is_taken_back_while_it_is_delayed(rest: Rest, topic: str) -> None:
    rest.create(topic, f"{topic}-s")
    delayed, due = rest.publish(topic, "later", delay="2h")[0], rest.publish(topic, "now")[0]
    path = f"/topics/{topic}/messages"
    assert rest.get(f"{path}/{delayed}/ack").json["subscriptions"][f"{topic}-s"]["state"] == "delayed"
    assert rest.delete(f"{path}/{delayed}").status == 204
    assert rest.get(f"{path}/{delayed}/ack").json["subscriptions"][f"{topic}-s"]["state"] == "cancelled"
    assert rest.delete(f"{path}/{due}").problem[:2] == (409, "message_not_delayed")


def test_message_of_a_delayed_topic_is_taken_back_while_it_waits(rest: Rest, topic: str) -> None:
    later = f"{topic}-later"
    rest.post("/topics", {"name": topic})
    assert rest.post("/topics", {"name": later, "config": {"delay.target": topic}}).status == 201
    delayed, due = rest.publish(later, "later", delay="2h")[0], rest.publish(later, "now")[0]
    assert rest.get(f"/topics/{later}/messages/{delayed}").json["payload"] == "later"
    assert rest.get(f"/topics/{later}/messages/{delayed}/ack").json["subscriptions"] == {}
    assert rest.delete(f"/topics/{later}/messages/{delayed}").status == 204
    while not (found := rest.get(f"/topics/{topic}/messages").json["messages"]):
        pass
    assert [message["payload"] for message in found] == ["now"]
    assert rest.delete(f"/topics/{later}/messages/{due}").problem[:2] == (409, "message_not_delayed")
    assert rest.delete(f"/topics/{later}/messages/0-99").problem[:2] == (404, "unknown_message")
    refused = rest.post(f"/topics/{later}/subscriptions", {"name": f"{topic}-s"})
    assert refused.problem[:2] == (400, "invalid_subscription")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"delay.target": "no-such-topic"}, "there is no such topic: create the target first"),
        ({"delay.enable": "true"}, "create a topic with delay.target=<this topic>"),
    ],
)
def test_delayed_topic_needs_a_target(rest: Rest, topic: str, config: dict[str, str], reason: str) -> None:
    status, code, detail = rest.post("/topics", {"name": topic, "config": config}).problem
    assert (status, code) == (400, "invalid_config")
    assert reason in detail


def test_target_is_deleted_after_its_delayed_topic(rest: Rest, topic: str) -> None:
    rest.post("/topics", {"name": topic})
    rest.post("/topics", {"name": f"{topic}-later", "config": {"delay.target": topic}})
    assert rest.delete(f"/topics/{topic}").status == 409
    assert [rest.delete(f"/topics/{name}").status for name in (f"{topic}-later", topic)] == [204, 204]
