"""The delay from publish to ack, on the page of metrics and in the statistics of subscriptions."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer

from conveyor.testing import Broker
from tests.clients.rest_client import Rest


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Time stands still unless a test moves it. Records keep their producers' timestamps."""
    with Broker(memory=True, manual_clock=True, settings={"topics.message_timestamp_type": "CreateTime"}) as running:
        yield running


@pytest.fixture
def rest(broker: Broker) -> Iterator[Rest]:
    client = Rest(broker)
    yield client
    client.close()


def lease(rest: Rest, name: str, count: int = 1) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    while len(messages) < count:
        messages += rest.lease(name)
    return messages


def ack(rest: Rest, name: str, messages: list[dict[str, Any]]) -> None:
    answer = rest.post(f"/subscriptions/{name}/ack", {"ack_ids": [each["ack_id"] for each in messages]})
    assert {each["status"] for each in answer.json["results"]} == {"ok"}


def shown(rest: Rest, name: str) -> tuple[int, float, dict[int | None, int]]:
    """Return the count, the sum in ms, and the counts of the buckets with messages by their bounds."""
    delay = rest.get(f"/subscriptions/{name}").json["ack_delay"]
    buckets = {bucket["up_to_ms"]: bucket["count"] for bucket in delay["buckets"] if bucket["count"]}
    return delay["count"], delay["sum_ms"], buckets


def samples(broker: Broker, name: str) -> dict[str, float]:
    """Return the samples of a subscription's histogram: of its buckets by `le`, and `count` and `sum`."""
    with urlopen(f"{broker.http_url}/metrics") as answer:
        page = answer.read().decode()
    lines = re.findall(r"^conveyor_queue_ack_delay_seconds_(\w+)\{(.+)\} (\S+)$", page, re.MULTILINE)
    found = {}
    for kind, labels, value in lines:
        values = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if values["subscription"] == name:
            assert values.keys() == {"topic", "subscription"} | ({"le"} if kind == "bucket" else set())
            found[values.get("le", kind)] = float(value)
    return found


def test_delay_counts_from_publish_to_ack(broker: Broker, rest: Rest, topic: str) -> None:
    rest.create(topic, topic)
    assert rest.get(f"/subscriptions/{topic}").json["ack_delay"]["p50_ms"] is None
    rest.publish(topic, "a")
    broker.clock.advance(seconds=20)
    rest.publish(topic, "b")
    messages = lease(rest, topic, 2)
    broker.clock.advance(seconds=2)
    ack(rest, topic, messages)
    assert shown(rest, topic) == (2, 24_000, {2_500: 1, 30_000: 1})
    delay = rest.get(f"/subscriptions/{topic}").json["ack_delay"]
    assert (delay["p50_ms"], delay["p99_ms"]) == (2_500, 29_600)
    found = samples(broker, topic)
    assert (found["count"], found["sum"], found["1.0"], found["2.5"], found["10.0"]) == (2, 24, 0, 1, 1)
    assert (found["30.0"], found["86400.0"], found["+Inf"]) == (2, 2, 2)


def test_nacks_and_dead_letters_count_nothing(broker: Broker, rest: Rest, topic: str) -> None:
    rest.create(topic, topic, max_deliveries=1)
    rest.publish(topic, "a", "b")
    first, second = lease(rest, topic, 2)
    rest.post(f"/subscriptions/{topic}/nack", {"ack_id": first["ack_id"]})
    rest.post(f"/subscriptions/{topic}/reject", {"ack_id": second["ack_id"], "reason": "no"})
    assert rest.get(f"/subscriptions/{topic}").json["unsettled"] >= 0
    assert shown(rest, topic) == (0, 0, {})
    assert samples(broker, topic)["+Inf"] == 0


@pytest.mark.parametrize("commits", [True, False])
def test_ack_in_a_transaction_counts_if_it_commits(broker: Broker, rest: Rest, topic: str, commits: bool) -> None:
    rest.create(topic, topic, partitions=2)
    rest.publish(topic, "a", "b", partition=0)
    first, second = lease(rest, topic, 2)
    broker.clock.advance(seconds=3)
    if not commits:
        rest.publish(topic, "c", partition=1)
        second = lease(rest, topic)[0]
        rest.post(f"/subscriptions/{topic}/nack", {"ack_id": second["ack_id"], "delay": "1h"})
    ack_ids = [first["ack_id"], second["ack_id"]]
    answer = rest.post("/transactions", {"acknowledge": [{"subscription": topic, "ack_ids": ack_ids}]})
    assert answer.status == (200 if commits else 409)
    assert shown(rest, topic) == ((2, 6_000, {5_000: 2}) if commits else (0, 0, {}))


def test_timestamps_of_producers_cannot_break_the_histogram(broker: Broker, rest: Rest, topic: str) -> None:
    rest.create(topic, topic)
    now_ms = int(broker.clock.now_ms())
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for timestamp_ms in (now_ms + 3_600_000, now_ms - 7, 1):
        producer.produce(topic, b"x", timestamp=timestamp_ms)
    assert producer.flush(20) == 0
    ack(rest, topic, lease(rest, topic, 3))
    assert shown(rest, topic) == (3, now_ms - 1 + 7, {5: 1, 10: 1, None: 1})


def test_counting_begins_anew_with_another_subscription_of_the_name(broker: Broker, rest: Rest, topic: str) -> None:
    rest.create(topic, topic)
    rest.publish(topic, "a")
    ack(rest, topic, lease(rest, topic))
    assert shown(rest, topic) == (1, 0, {5: 1})
    rest.delete(f"/subscriptions/{topic}")
    assert samples(broker, topic) == {}
    rest.post(f"/topics/{topic}/subscriptions", {"name": topic})
    assert shown(rest, topic) == (0, 0, {})
