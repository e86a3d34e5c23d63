"""Leases over HTTP: taken, settled by either id, extended, lost; waited for, and given up by clients that go away."""

import threading

import pytest

from conveyor.testing import Broker
from tests.clients.rest_client import Rest


@pytest.fixture
def name(rest: Rest, topic: str) -> str:
    """A subscription on a topic of its own."""
    rest.create(topic, f"{topic}-s")
    return f"{topic}-s"


def test_lease_shows_the_message(rest: Rest, topic: str, name: str) -> None:
    rest.publish(topic, "hello", key="k", tag="t")
    for path in (f"/subscriptions/{name}/messages", f"/topics/{topic}/subscriptions/{name}/messages"):
        leased = rest.get(path, wait="10s", visibility="0s").json["messages"]
        assert leased == [
            {
                "message_id": "0-0",
                "payload": "hello",
                "key": "k",
                "headers": {"conveyor-tag": "t"},
                "tag": "t",
                "partition": 0,
                "offset": 0,
                "timestamp_ms": leased[0]["timestamp_ms"],
                "ack_id": leased[0]["ack_id"],
                "delivery_count": leased[0]["delivery_count"],
                "lease_expires_at_ms": leased[0]["lease_expires_at_ms"],
                "first_delivered_ms": leased[0]["first_delivered_ms"],
            }
        ]


def test_lease_of_bytes_shows_them_as_base64(rest: Rest, topic: str, name: str) -> None:
    rest.post(f"/topics/{topic}/messages", b"\xff\x00")
    assert [(each["payload"], each["payload_encoding"]) for each in rest.lease(name)] == [("/wA=", "base64")]


def test_lease_takes_as_many_as_are_asked_for(rest: Rest, topic: str, name: str) -> None:
    rest.publish(topic, "a", "b", "c")
    assert [len(rest.lease(name, max_messages=count)) for count in (1, 10)] == [1, 2]
    assert rest.get(f"/subscriptions/{name}/messages").json == {"messages": []}


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"max_messages": 0}, "query parameter 'max_messages': Expected `int` >= 1"),
        ({"max_messages": "all"}, "Expected `int`, got `str`"),
        ({"wait": 5}, "'5' is not a duration"),
        ({"wait": "21s"}, "21s is too long: at most 20s"),
        ({"visibility": "13h"}, "13h is too long: at most 12h"),
        ({"visibility": "-1s"}, "'-1s' is not a duration"),
        ({"limit": 1}, "unknown query parameter 'limit': use one of client_id, max_messages, visibility, wait"),
    ],
)
def test_lease_that_makes_no_sense_is_refused(rest: Rest, name: str, query: dict[str, object], reason: str) -> None:
    status, kind, detail = rest.get(f"/subscriptions/{name}/messages", **query).problem
    assert (status, kind) == (400, "invalid_request")
    assert reason in detail


@pytest.mark.parametrize("by", ["ack_id", "message_id"])
def test_message_is_settled_by_either_id(rest: Rest, topic: str, name: str, by: str) -> None:
    rest.publish(topic, "a", "b", "c")
    one, *others = rest.lease(name)
    assert rest.post(f"/subscriptions/{name}/ack", {by: one[by]}).json == {"results": [{"status": "ok", by: one[by]}]}
    settled = rest.post(f"/subscriptions/{name}/ack", {f"{by}s": [each[by] for each in others]})
    assert settled.json == {"results": [{"status": "ok", by: each[by]} for each in others]}
    assert rest.get(f"/subscriptions/{name}").json["unsettled"] == 0


def test_returned_message_is_delivered_again(rest: Rest, topic: str, name: str) -> None:
    rest.publish(topic, "a")
    first = rest.lease(name)[0]
    assert rest.post(f"/subscriptions/{name}/nack", {"ack_id": first["ack_id"], "delay": "0s"}).status == 200
    again = rest.lease(name)[0]
    assert (again["message_id"], again["delivery_count"]) == (first["message_id"], 2)
    assert again["ack_id"] != first["ack_id"]
    rest.post(f"/subscriptions/{name}/nack", {"message_ids": [again["message_id"]], "delay": "1h"})
    assert rest.get(f"/subscriptions/{name}").json["delayed"] == 1


def test_lease_is_extended(rest: Rest, topic: str, name: str) -> None:
    rest.publish(topic, "a")
    leased = rest.lease(name, visibility="1h")[0]
    extended = rest.post(f"/subscriptions/{name}/extend", {"ack_id": leased["ack_id"], "visibility": "12h"})
    assert extended.json["results"][0]["status"] == "ok"
    due_ms = rest.get(f"/subscriptions/{name}/peek").json["messages"][0]["due_ms"]
    assert due_ms > leased["lease_expires_at_ms"]


def test_ack_of_an_expired_lease_is_accepted_on_demand(rest: Rest, topic: str, name: str) -> None:
    rest.publish(topic, "a")
    ack_id = rest.lease(name, visibility="0s")[0]["ack_id"]
    assert rest.post(f"/subscriptions/{name}/ack", {"ack_id": ack_id}).problem[:2] == (409, "lease_lost")
    late = {"ack_id": ack_id, "accept_late": True}
    for _ in range(2):
        assert rest.post(f"/subscriptions/{name}/ack", late).json == {"results": [{"status": "ok", "ack_id": ack_id}]}
    assert rest.get(f"/subscriptions/{name}").json["unsettled"] == 0


def test_late_ack_does_not_settle_what_another_consumer_holds(rest: Rest, topic: str, name: str) -> None:
    rest.publish(topic, "a")
    late = rest.lease(name, visibility="0s")[0]["ack_id"]
    held = rest.lease(name)[0]
    refused = rest.post(f"/subscriptions/{name}/ack", {"ack_id": late, "accept_late": True})
    assert refused.problem[:2] == (409, "lease_lost")
    assert rest.post(f"/subscriptions/{name}/ack", {"ack_id": held["ack_id"]}).status == 200


def test_messages_of_a_key_are_leased_together(rest: Rest, topic: str, name: str) -> None:
    refused = rest.patch(f"/subscriptions/{name}", {"max_in_flight_per_key": 2})
    assert refused.status == 400
    assert "ordering 'key' only" in refused.json["detail"]
    changed = rest.patch(f"/subscriptions/{name}", {"ordering": "key", "max_in_flight_per_key": 2})
    assert changed.json["max_in_flight_per_key"] == 2
    rest.publish(topic, "a", "b", "c", key="k")
    first = rest.lease(name, max_messages=10)
    assert [each["payload"] for each in first] == ["a", "b"]
    assert rest.get(f"/subscriptions/{name}/messages").json == {"messages": []}
    rest.post(f"/subscriptions/{name}/ack", {"ack_ids": [each["ack_id"] for each in first]})
    assert [each["payload"] for each in rest.lease(name, max_messages=10)] == ["c"]


def test_each_of_several_is_answered_on_its_own(rest: Rest, topic: str, name: str) -> None:
    rest.publish(topic, "a")
    ack_id = rest.lease(name)[0]["ack_id"]
    answer = rest.post(f"/subscriptions/{name}/ack", {"ack_ids": ["foreign", ack_id]})
    results = answer.json["results"]
    assert answer.status == 200
    assert [each["status"] for each in results] == ["error", "ok"]
    assert [each["ack_id"] for each in results] == ["foreign", ack_id]
    assert (results[0]["error"]["status"], results[0]["error"]["kind"]) == (400, "invalid_ack_id")


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "reject"])
def test_lease_that_cannot_be_settled_has_its_own_problem(rest: Rest, topic: str, name: str, verb: str) -> None:
    other = f"{topic}-other"
    rest.create(other, f"{other}-s")
    rest.publish(topic, "a")
    rest.publish(other, "a")
    more = {"visibility": "5s"} if verb == "extend" else {}

    def settle(**target: object) -> tuple[int, str]:
        return rest.post(f"/subscriptions/{name}/{verb}", {**target, **more}).problem[:2]

    assert settle(ack_id="nonsense") == (400, "invalid_ack_id")
    assert settle(ack_id=rest.lease(f"{other}-s")[0]["ack_id"]) == (400, "invalid_ack_id")
    assert settle(message_id="0-77") == (404, "unknown_message")
    assert settle(message_id="9-0") == (404, "unknown_message")
    assert settle(message_id="0-0")[0] == 409
    stale = rest.lease(name, visibility="0s")[0]["ack_id"]
    assert settle(ack_id=stale) == (409, "lease_lost")


@pytest.mark.parametrize(
    ("verb", "body", "reason"),
    [
        ("ack", {}, "name the messages by exactly one of ack_id, message_id, ack_ids, message_ids"),
        ("ack", {"ack_id": "a", "message_id": "0-0"}, "name the messages by exactly one of"),
        ("ack", {"ack_ids": []}, "Expected `array` of length >= 1 - at `$.ack_ids`"),
        ("ack", {"ack_ids": "a"}, "Expected `array`, got `str` - at `$.ack_ids`"),
        ("ack", {"ack_ids": [5]}, "Expected `str`, got `int` - at `$.ack_ids[0]`"),
        ("ack", {"ack_ids": ["a"] * 10_001}, "Expected `array` of length <= 10000"),
        ("ack", {"id": "a"}, "Object contains unknown field `id`"),
        ("ack", {"ack_id": "a", "delay": "5s"}, "Object contains unknown field `delay`"),
        ("nack", {"ack_id": "a", "delay": 5}, "5 is not a duration"),
        ("nack", {"ack_id": "a", "delay": "-5s"}, "'-5s' is not a duration"),
        ("extend", {"ack_id": "a"}, "Object missing required field `visibility`"),
        ("extend", {"ack_id": "a", "visibility": "13h"}, "13h is too long: at most 12h"),
        ("reject", {"ack_id": "a", "reason": None}, "Expected `str`, got `null` - at `$.reason`"),
        ("reject", {"ack_id": "a", "reason": "x" * 201}, "Expected `str` of length <= 200 - at `$.reason`"),
    ],
)
def test_settling_that_makes_no_sense_is_refused(rest: Rest, name: str, verb: str, body: object, reason: str) -> None:
    status, kind, detail = rest.post(f"/subscriptions/{name}/{verb}", body).problem
    assert (status, kind) == (400, "invalid_request")
    assert reason in detail


def test_client_that_waits_is_answered_with_the_first_message(
    broker: Broker, rest: Rest, topic: str, name: str
) -> None:
    waiting = Rest(broker)
    found: list[str] = []
    poll = threading.Thread(target=lambda: found.extend(each["payload"] for each in waiting.lease(name, wait="20s")))
    poll.start()
    rest.publish(topic, "a")
    poll.join()
    waiting.close()
    assert found == ["a"]


def test_client_that_goes_away_while_it_waits_loses_nothing(broker: Broker, rest: Rest, topic: str, name: str) -> None:
    for _ in range(5):
        gone = Rest(broker)
        gone.send("GET", f"/subscriptions/{name}/messages?wait=20s&visibility=1h&max_messages=10")
        gone.close()
    rest.publish(topic, "a", "b")
    leased: list[str] = []
    while len(leased) < 2:
        leased += [each["payload"] for each in rest.lease(name, wait="20s")]
    assert leased == ["a", "b"]
    assert rest.get(f"/subscriptions/{name}").json["in_flight"] == 2


def test_broker_that_stops_answers_who_waits() -> None:
    with Broker(memory=True) as broker:
        waiting = Rest(broker)
        waiting.create("t", "s")
        statuses: list[int] = []
        begun = threading.Event()

        def wait() -> None:
            waiting.send("GET", "/subscriptions/s/messages?wait=20s")
            begun.set()
            statuses.append(waiting.receive().status)

        poll = threading.Thread(target=wait)
        poll.start()
        begun.wait()
    poll.join()
    waiting.close()
    assert statuses == [200]
