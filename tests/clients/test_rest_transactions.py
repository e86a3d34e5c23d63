"""Transactions over HTTP: messages of several topics, and acknowledgements, all at once or not at all."""

from typing import Any

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


def begin(rest: Rest, **options: object) -> str:
    begun = rest.post("/transactions", options)
    assert begun.status == 201
    return str(begun.json["transaction_id"])


def end(rest: Rest, transaction: str, verb: str = "commit") -> Answer:
    return rest.post(f"/transactions/{transaction}/{verb}")


def lease(rest: Rest, subscription: str, count: int = 10) -> list[dict[str, Any]]:
    return rest.lease(subscription, max_messages=count, wait="0s")


def ack(rest: Rest, subscription: str, transaction: str, *messages: dict[str, Any]) -> Answer:
    ack_ids = [message["ack_id"] for message in messages]
    return rest.post(f"/subscriptions/{subscription}/ack", {"ack_ids": ack_ids}, transaction=transaction)


def values(rest: Rest, topic: str) -> list[str]:
    return [
        message["payload"]
        for number in range(2)
        for message in rest.get(f"/topics/{topic}/messages", partition=number, from_="earliest").json["messages"]
    ]


def counts(rest: Rest, subscription: str) -> dict[str, int]:
    details = rest.get(f"/subscriptions/{subscription}").json
    return {name: details[name] for name in ("depth", "in_flight", "pending", "unsettled") if details[name]}


def test_results_and_acks_count_when_the_transaction_commits(rest: Rest, orders: str) -> None:
    transaction = begin(rest)
    (message,) = lease(rest, orders, 1)
    published = rest.post(f"/topics/{orders}-invoices/messages", b"invoice of a", transaction=transaction)
    assert published.status == 201
    acked = ack(rest, orders, transaction, message)
    assert (acked.status, acked.json["results"]) == (200, [{"status": "ok", "ack_id": message["ack_id"]}])
    assert ack(rest, orders, transaction, message).json == acked.json
    assert values(rest, f"{orders}-invoices") == []
    assert counts(rest, orders) == {"depth": 1, "pending": 1, "unsettled": 2}
    state = rest.get(f"/topics/{orders}/messages/{message['message_id']}/ack").json["subscriptions"]
    assert state[orders]["state"] == "pending"

    ended = end(rest, transaction)
    assert (ended.status, ended.json) == (200, {"transaction_id": transaction, "state": "committed"})
    assert end(rest, transaction).json == ended.json
    assert values(rest, f"{orders}-invoices") == ["invoice of a"]
    assert counts(rest, orders) == {"depth": 1, "unsettled": 1}


def test_messages_come_back_when_the_transaction_is_aborted(rest: Rest, orders: str) -> None:
    transaction = begin(rest)
    messages = lease(rest, orders)
    assert ack(rest, orders, transaction, *messages).status == 200
    assert rest.post(f"/topics/{orders}-invoices/messages", b"x", transaction=transaction).status == 201
    assert lease(rest, orders) == []
    assert end(rest, transaction, "abort").json["state"] == "aborted"
    again = lease(rest, orders)
    assert [(each["payload"], each["delivery_count"]) for each in again] == [("a", 2), ("b", 2)]
    assert values(rest, f"{orders}-invoices") == []
    assert end(rest, transaction).problem[:2] == (409, "transaction_aborted")


def test_messages_come_back_when_the_transaction_takes_too_long(rest: Rest, orders: str) -> None:
    transaction = begin(rest, timeout="1s")
    assert ack(rest, orders, transaction, *lease(rest, orders)).status == 200
    first, *_ = rest.lease(orders, wait="20s")
    assert first["delivery_count"] == 2
    assert end(rest, transaction).problem[:2] == (409, "transaction_aborted")


def test_refused_ack_aborts_the_transaction(rest: Rest, orders: str) -> None:
    """The result that was published with it would be there twice."""
    transaction = begin(rest)
    first, second = lease(rest, orders)
    assert rest.post(f"/topics/{orders}-invoices/messages", b"x", transaction=transaction).status == 201
    assert rest.post(f"/subscriptions/{orders}/nack", {"ack_id": second["ack_id"]}).status == 200
    status, kind, detail = ack(rest, orders, transaction, first, second).problem
    assert (status, kind) == (409, "lease_lost")
    assert detail.endswith("it was aborted: begin a new one")
    assert end(rest, transaction).problem[:2] == (409, "transaction_aborted")
    assert values(rest, f"{orders}-invoices") == []


def test_message_that_is_pending_cannot_be_settled_otherwise(rest: Rest, orders: str) -> None:
    transaction = begin(rest)
    message, _ = lease(rest, orders)
    assert ack(rest, orders, transaction, message).status == 200
    for verb in ("ack", "nack", "reject"):
        refused = rest.post(f"/subscriptions/{orders}/{verb}", {"ack_id": message["ack_id"]})
        assert refused.problem[:2] == (409, "lease_lost")
    assert ack(rest, orders, begin(rest), message).problem[:2] == (409, "lease_lost")
    assert end(rest, transaction).status == 200
    assert counts(rest, orders)["unsettled"] == 1


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


@pytest.mark.parametrize("transaction", ["x", "A" * 68, "%C3%A9"])
def test_unknown_transaction_is_refused(rest: Rest, orders: str, transaction: str) -> None:
    (message, _) = lease(rest, orders)
    refused = [
        rest.post(f"/topics/{orders}/messages", b"x", transaction=transaction),
        rest.post(f"/topics/{orders}/messages:batch", {"messages": [{"payload": "x"}]}, transaction=transaction),
        ack(rest, orders, transaction, message),
    ]
    assert [answer.problem[:2] for answer in refused] == [(404, "unknown_transaction")] * 3


def test_pending_messages_survive_a_restart(tmp_path: Any) -> None:
    with Broker(data_dir=tmp_path) as broker:
        rest = Rest(broker)
        rest.create("orders", "s")
        rest.publish("orders", "a", "b", "c")
        committed, aborted = begin(rest), begin(rest)
        first, second, _ = lease(rest, "s")
        assert ack(rest, "s", committed, first).status == 200
        assert ack(rest, "s", aborted, second).status == 200
        rest.close()
    with Broker(data_dir=tmp_path) as broker:
        rest = Rest(broker)
        assert [message["payload"] for message in lease(rest, "s")] == ["c"]
        assert counts(rest, "s") == {"in_flight": 1, "pending": 2, "unsettled": 3}
        assert end(rest, committed).status == 200
        assert end(rest, aborted, "abort").status == 200
        assert [message["payload"] for message in lease(rest, "s")] == ["b"]
        assert counts(rest, "s") == {"in_flight": 2, "unsettled": 2}
        rest.close()
