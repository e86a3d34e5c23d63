"""Dead letters over HTTP: where they lie, what they say of themselves, delivered again, given up."""

import pytest

from tests.clients.rest_client import Rest


def shown_ids(rest: Rest, name: str) -> list[str]:
    """Of a subscription's dead letters."""
    return [each["message_id"] for each in rest.get(f"/dlq/{name}").json["messages"]]


@pytest.fixture
def name(rest: Rest, topic: str) -> str:
    """A subscription whose messages a, b, c were rejected."""
    name = f"{topic}-s"
    rest.create(topic, name)
    rest.publish(topic, "a", "b", "c")
    leased = rest.lease(name)
    rest.post(f"/subscriptions/{name}/reject", {"ack_ids": [each["ack_id"] for each in leased], "reason": "no stock"})
    dead: list[str] = []
    while len(dead) < 3:
        dead = [each["payload"] for each in rest.get(f"/dlq/{name}").json["messages"]]
    assert dead == ["a", "b", "c"]
    return name


def test_dead_letter_says_where_it_comes_from(rest: Rest, topic: str, name: str) -> None:
    shown = rest.get(f"/dlq/{name}", limit=1).json["messages"]
    assert [(each["payload"], each["reason"], each["deliveries"]) for each in shown] == [("a", "no stock", 1)]
    assert (shown[0]["origin_topic"], shown[0]["message_id"], shown[0]["subscription"]) == (topic, "0-0", name)
    assert 0 < shown[0]["first_failure_ms"] <= shown[0]["last_failure_ms"]
    listed = rest.get("/dlq").json["topics"]
    assert {"topic": f"{topic}.dlq", "depth": 3, "subscriptions": [name]} in listed
    assert rest.get(f"/subscriptions/{name}").json["dead"] == 3
    filtered = rest.get(f"/dlq/{name}", filter="payload == 'x' || size > 1000").json["messages"]
    assert filtered == []


@pytest.mark.parametrize("path", ["/dlq/{}/redrive", "/subscriptions/{}/redrive"])
def test_dead_letters_are_delivered_again(rest: Rest, name: str, path: str) -> None:
    assert rest.post(path.format(name), {"message_ids": ["0-1"]}).json == {"redriven": 1, "unknown": []}
    assert [each["payload"] for each in rest.lease(name)] == ["b"]
    assert rest.post(path.format(name), {"rate": 1000}).json == {"redriven": 2, "unknown": []}
    assert [each["payload"] for each in rest.lease(name)] == ["a", "c"]
    assert rest.get(f"/subscriptions/{name}").json["dead"] == 0


def test_dead_letters_are_given_up(rest: Rest, name: str) -> None:
    assert rest.post(f"/dlq/{name}/drop", {"message_ids": ["0-2"]}).json == {"dropped": 1, "unknown": []}
    assert rest.post(f"/dlq/{name}/drop").json == {"dropped": 2, "unknown": []}
    assert rest.get(f"/dlq/{name}").json == {"messages": [], "without_copy": 0}


def test_ids_of_no_dead_letters_are_told_and_the_others_done(rest: Rest, name: str) -> None:
    answer = rest.post(f"/dlq/{name}/redrive", {"message_ids": ["0-1", "0-9", "x"]})
    assert answer.json == {"redriven": 1, "unknown": ["0-9", "x"]}
    answer = rest.post(f"/dlq/{name}/drop", {"message_ids": ["0-1", "0-2"]})
    assert answer.json == {"dropped": 1, "unknown": ["0-1"]}
    assert shown_ids(rest, name) == ["0-0"]


def test_letters_of_two_subscriptions_in_one_topic_are_named_by_their_originals(rest: Rest, topic: str) -> None:
    """The copy of the second one's only letter lies behind those of the first one."""
    names = [f"{topic}-one", f"{topic}-two"]
    for name, payloads in zip(names, (["a", "b"], ["c"]), strict=True):
        rest.create(f"{topic}-of-{name}", name, dead_letter_topic=f"{topic}.shared")
        rest.publish(f"{topic}-of-{name}", *payloads)
        ids = [each["ack_id"] for each in rest.lease(name)]
        rest.post(f"/subscriptions/{name}/reject", {"ack_ids": ids})
        while len(shown_ids(rest, name)) < len(payloads):
            pass
    [letter] = rest.get(f"/dlq/{names[1]}", filter="offset == 0").json["messages"]
    place = (letter["message_id"], letter["partition"], letter["offset"], letter["dead_letter_id"])
    assert (letter["payload"], place) == ("c", ("0-0", 0, 0, "0-2"))
    assert rest.post(f"/dlq/{names[1]}/drop", {"message_ids": [letter["message_id"]]}).json["dropped"] == 1
    assert (shown_ids(rest, names[0]), shown_ids(rest, names[1])) == (["0-0", "0-1"], [])


def test_pages_go_by_the_copies(rest: Rest, name: str) -> None:
    ids: list[str] = []
    after: dict[str, object] = {}
    while page := rest.get(f"/dlq/{name}", limit=2, **after).json["messages"]:
        ids += [each["message_id"] for each in page]
        after = {"after": page[-1]["dead_letter_id"]}
    assert ids == ["0-0", "0-1", "0-2"]


def test_letters_without_a_copy_are_counted_where_all_are_looked_at(rest: Rest, topic: str, name: str) -> None:
    rest.patch(f"/subscriptions/{name}", {"dead_letter_topic": f"{topic}.other"})
    assert rest.get(f"/dlq/{name}").json == {"messages": [], "without_copy": 3}
    rest.publish(topic, "d")
    rest.post(f"/subscriptions/{name}/reject", {"ack_id": rest.lease(name)[0]["ack_id"]})
    while not shown_ids(rest, name):
        pass
    assert [rest.get(f"/dlq/{name}", limit=each).json["without_copy"] for each in (1, 2)] == [None, 3]
    assert rest.get(f"/dlq/{name}", after="0-0").json == {"messages": [], "without_copy": None}


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        ({"rate": 0}, "invalid_request", "Expected `float` > 0.0 - at `$.rate`"),
        ({"rate": -1}, "invalid_request", "Expected `float` > 0.0 - at `$.rate`"),
        ({"rate": "fast"}, "invalid_request", "at `$.rate`"),
        ({"filter": "size >"}, "invalid_filter", "size >"),
        ({"message_ids": []}, "invalid_request", "of length >= 1 - at `$.message_ids`"),
        ({"ids": ["0-0"]}, "invalid_request", "Object contains unknown field `ids`"),
    ],
)
def test_redrive_that_makes_no_sense_is_refused(rest: Rest, name: str, body: object, kind: str, reason: str) -> None:
    status, answered, detail = rest.post(f"/subscriptions/{name}/redrive", body).problem
    assert (status, answered) == (400, kind)
    assert reason in detail
    assert rest.get(f"/subscriptions/{name}").json["dead"] == 3


def test_look_at_dead_letters_that_makes_no_sense_is_refused(rest: Rest, name: str) -> None:
    assert rest.get(f"/dlq/{name}", limit=0).problem[:2] == (400, "invalid_request")
    assert rest.get(f"/dlq/{name}", filter="size >").problem[:2] == (400, "invalid_filter")
    assert rest.get("/dlq/absent").problem[:2] == (404, "unknown_subscription")
