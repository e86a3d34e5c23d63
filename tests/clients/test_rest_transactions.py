"""Transactions over HTTP: messages of several topics, and acknowledgements, all at once or not at all."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from conveyor.testing import Broker
from tests.clients.rest_client import Answer, Rest


@pytest.fixture
def orders(rest: Rest, topic: str) -> str:
    """A topic with two messages and a subscription of the same name."""
    rest.create(topic, topic)
    rest.create(f"{topic}-invoices", partitions=2)
    rest.publish(topic, "a", "b")
    return topic


def lease(rest: Rest, subscription: str, count: int = 10) -> list[dict[str, Any]]:
    return rest.lease(subscription, max_messages=count, wait="0s")


def acks(subscription: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"subscription": subscription, "ack_ids": [message["ack_id"] for message in messages]}]


def invoice(orders: str, payload: str = "invoice", **more: object) -> dict[str, Any]:
    return {"topic": f"{orders}-invoices", "payload": payload, "partition": 0, **more}


def run(rest: Rest, messages: list[dict[str, Any]], acknowledge: list[dict[str, Any]] | None = None,
        **more: object) -> Answer:  # fmt: skip
    return rest.post("/transactions", {"messages": messages, "acknowledge": acknowledge or [], **more})


def values(rest: Rest, topic: str) -> list[str]:
    return [
        message["payload"]
        for number in range(2)
        for message in rest.get(f"/topics/{topic}/messages", partition=number, from_="earliest").json["messages"]
    ]


def counts(rest: Rest, subscription: str) -> dict[str, int]:
    details = rest.get(f"/subscriptions/{subscription}").json
    return {name: details[name] for name in ("depth", "in_flight", "pending", "unsettled") if details[name]}


def test_results_and_acks_count_at_once(rest: Rest, orders: str) -> None:
    (message,) = lease(rest, orders, 1)
    messages = [invoice(orders, "of a"), {"topic": orders, "payload": "c", "key": "k"}, invoice(orders, "2")]
    answer = run(rest, messages, acks(orders, message), id=f"{orders}-1")
    assert answer.status == 200
    assert answer.json == {
        "id": f"{orders}-1",
        "results": [
            {"message_id": "0-0", "partition": 0, "offset": 0, "duplicate": False},
            {"message_id": "0-2", "partition": 0, "offset": 2, "duplicate": False},
            {"message_id": "0-1", "partition": 0, "offset": 1, "duplicate": False},
        ],
        "acknowledged": acks(orders, message),
    }
    assert values(rest, f"{orders}-invoices") == ["of a", "2"]
    assert counts(rest, orders) == {"depth": 2, "unsettled": 2}


def test_messages_can_be_acknowledged_by_their_ids(rest: Rest, orders: str) -> None:
    first, second = lease(rest, orders)
    one = {"subscription": orders, "message_id": first["message_id"]}
    some = {"subscription": orders, "message_ids": [second["message_id"]]}
    answer = run(rest, [], [one, some])
    assert answer.json["acknowledged"] == [{**some, "message_ids": [first["message_id"]]}, some]
    assert answer.json["results"] == []
    assert counts(rest, orders) == {}


def test_repeated_request_gets_the_first_answer(rest: Rest, orders: str) -> None:
    (message,) = lease(rest, orders, 1)
    request = [invoice(orders)], acks(orders, message)
    answers = [run(rest, *request, id=f"{orders}-1") for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    assert answers[0].json == answers[1].json == answers[2].json
    assert values(rest, f"{orders}-invoices") == ["invoice"]


def test_request_without_an_id_is_executed_each_time(rest: Rest, orders: str) -> None:
    assert [run(rest, [invoice(orders)]).status for _ in range(2)] == [200] * 2
    assert values(rest, f"{orders}-invoices") == ["invoice"] * 2


def test_id_belongs_to_one_request(rest: Rest, orders: str) -> None:
    assert run(rest, [invoice(orders)], id=f"{orders}-1").status == 200
    (message,) = lease(rest, orders, 1)
    others = [
        run(rest, [invoice(orders, "other")], id=f"{orders}-1"),
        run(rest, [invoice(orders, tag="x")], id=f"{orders}-1"),
        run(rest, [invoice(orders)], acks(orders, message), id=f"{orders}-1"),
    ]
    assert [answer.problem[:2] for answer in others] == [(422, "transaction_id_reused")] * 3
    assert values(rest, f"{orders}-invoices") == ["invoice"]


def test_answer_that_was_lost_comes_with_the_repeated_request(rest: Rest, broker: Broker, orders: str) -> None:
    """The client closes its connection as soon as its request is sent."""
    body = json.dumps({"id": f"{orders}-1", "messages": [invoice(orders)]}).encode()
    url = urlsplit(broker.http_url)
    with socket.create_connection((url.hostname, url.port)) as connection:
        connection.sendall(b"POST /transactions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    while (answer := rest.post("/transactions", body)).status == 409:
        assert answer.problem[1] == "concurrent_transactions"
        assert answer.headers["Retry-After"] == "1"
    assert answer.status == 200
    assert values(rest, f"{orders}-invoices") == ["invoice"]


def test_refused_ack_names_its_lease_and_nothing_counts(rest: Rest, orders: str) -> None:
    first, second = lease(rest, orders)
    assert rest.post(f"/subscriptions/{orders}/nack", {"ack_id": second["ack_id"]}).status == 200
    refused = run(rest, [invoice(orders)], acks(orders, first, second), id=f"{orders}-1")
    status, kind, detail = refused.problem
    assert (status, kind) == (409, "lease_lost")
    assert detail.startswith("nothing was published or acknowledged, because 1 of 2 messages cannot be acknowledged: ")
    assert second["ack_id"] in detail
    assert first["ack_id"] not in detail
    assert values(rest, f"{orders}-invoices") == []
    leased = rest.lease(orders, wait="20s")
    assert run(rest, [invoice(orders)], acks(orders, *leased), id=f"{orders}-1").status == 200
    assert values(rest, f"{orders}-invoices") == ["invoice"]


def test_refused_message_costs_no_lease(rest: Rest, orders: str) -> None:
    (message,) = lease(rest, orders, 1)
    status, kind, detail = run(rest, [invoice(orders), invoice(orders, partition=9)], acks(orders, message)).problem
    assert (status, kind) == (400, "invalid_request")
    assert detail.startswith("nothing was published or acknowledged, because message 1 was refused: ")
    assert run(rest, [invoice(orders)], acks(orders, message)).status == 200
    assert values(rest, f"{orders}-invoices") == ["invoice"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "`messages` and `acknowledge`"),
        ({"id": ""}, "$.id"),
        ({"id": "x" * 201}, "$.id"),
        ({"id": 7}, "$.id"),
        ({"name": "x"}, "use one of id, messages, acknowledge"),
        ({"messages": [{"payload": "x"}]}, "`topic`"),
        ({"messages": [{"topic": "t", "payload": "x", "priority": 99}]}, "$.messages[0].priority"),
        ({"messages": [{"topic": "t", "payload": "#", "payload_encoding": "base64"}]}, "message 0 is not valid"),
        ({"acknowledge": [{"ack_id": "x"}]}, "`subscription`"),
        ({"acknowledge": [{"subscription": "s"}]}, "exactly one of ack_id"),
        ({"acknowledge": [{"subscription": "s", "ack_id": "x", "message_ids": ["0-0"]}]}, "exactly one of ack_id"),
        ({"acknowledge": [{"subscription": "s", "ack_ids": ["x"] * 6_000}] * 2}, "12000 messages: at most 10000"),
        ({"acknowledge": [{"subscription": "s", "ack_id": "x"}] * 101}, "$.acknowledge"),
    ],
)
def test_invalid_request_names_the_field(rest: Rest, body: dict[str, Any], named: str) -> None:
    status, kind, detail = rest.post("/transactions", body).problem
    assert (status, kind) == (400, "invalid_request")
    assert named in detail


def test_unknown_ids_and_subscriptions_are_named(rest: Rest, orders: str) -> None:
    refused = run(rest, [invoice(orders)], [{"subscription": "nobody", "ack_ids": ["x", "y"]}])
    assert refused.problem[:2] == (404, "unknown_subscription")
    assert "x of subscription 'nobody'" in refused.problem[2]
    refused = run(rest, [invoice(orders)], [{"subscription": orders, "ack_ids": ["x"]}])
    assert refused.problem[:2] == (400, "invalid_ack_id")
    assert values(rest, f"{orders}-invoices") == []


@pytest.mark.parametrize("places", [("id", "messages", "acknowledge"), ("acknowledge", "messages", "id")])
def test_long_request_is_executed_whole(rest: Rest, orders: str, places: tuple[str, ...]) -> None:
    leased = lease(rest, orders)
    fields = {
        "id": orders,
        "messages": [invoice(orders, f"{number} ".ljust(100)) for number in range(2_000)],
        "acknowledge": acks(orders, *leased),
    }
    answer = rest.post("/transactions", {name: fields[name] for name in places})
    assert answer.status == 200, answer.body
    assert [result["offset"] for result in answer.json["results"]] == list(range(2_000))
    assert counts(rest, orders) == {}
    assert rest.post("/transactions", fields).json == answer.json


@pytest.mark.parametrize(
    ("tail", "named"),
    [
        (b'], "other": 1}', "other"),
        (b'], "messages": []}', "messages"),
        (b",]}", "comma"),
        (b"]]", "not JSON"),
        (b"]", "not JSON"),
        (b"", "does not end"),
        (b', {"topic": 7, "payload": "x"}]}', "$.messages[2000].topic"),
        (b'], "id": "' + b"x" * (1 << 20) + b'"}', "besides its messages"),
    ],
)
def test_long_request_that_is_not_valid_is_refused(rest: Rest, orders: str, tail: bytes, named: str) -> None:
    messages = json.dumps({"messages": [invoice(orders, "x" * 100)] * 2_000}).encode().removesuffix(b"]}")
    status, _, detail = rest.post("/transactions", messages + tail).problem
    assert status in (400, 413)
    assert named in detail
    assert values(rest, f"{orders}-invoices") == []


def test_batch_of_several_topics_is_published_as_a_whole(rest: Rest, orders: str) -> None:
    batch = [
        {"topic": orders, "payload": "c"},
        {"topic": f"{orders}-invoices", "payload": "1", "key": "k"},
        {"topic": f"{orders}-invoices", "payload": "2"},
    ]
    published = rest.post("/messages:batch", {"messages": batch})
    assert published.status == 200
    assert [set(result) for result in published.json["results"]] == [
        {"message_id", "partition", "offset", "duplicate"}
    ] * 3
    assert sorted(values(rest, f"{orders}-invoices")) == ["1", "2"]
    batch[1]["priority"] = 99  # type: ignore[assignment]
    assert rest.post("/messages:batch", {"messages": batch}).problem[:2] == (400, "invalid_request")
    batch[1] = {"topic": "nowhere.to/go", "payload": "x"}
    assert rest.post("/messages:batch", {"messages": batch}).status in (400, 404)
    assert sorted(values(rest, f"{orders}-invoices")) == ["1", "2"]


def test_repeated_request_gets_the_first_answer_after_a_restart(tmp_path: Any) -> None:
    answers: list[Answer] = []
    for _ in range(2):
        with Broker(data_dir=tmp_path) as broker:
            rest = Rest(broker)
            if not answers:
                rest.create("orders", "s")
                rest.create("orders-invoices", partitions=2)
                rest.publish("orders", "a", "b")
                acknowledge = acks("s", lease(rest, "s", 1)[0])
            answers.append(run(rest, [invoice("orders")], acknowledge, id="order-4711"))
            assert values(rest, "orders-invoices") == ["invoice"]
            assert counts(rest, "s")["unsettled"] == 1
            rest.close()
    assert answers[0].json == answers[1].json


def test_answer_is_kept_for_its_retention() -> None:
    settings = {"transactions.answer_retention_ms": 60_000}
    with Broker(memory=True, manual_clock=True, settings=settings) as broker:
        rest = Rest(broker)
        rest.create("orders-invoices", partitions=2)
        for milliseconds, count in ((59_999, 1), (1, 2)):
            assert run(rest, [invoice("orders")], id="x").status == 200
            broker.clock.advance(ms=milliseconds)
            assert run(rest, [invoice("orders")], id="x").status == 200
            assert values(rest, "orders-invoices") == ["invoice"] * count
        rest.close()
