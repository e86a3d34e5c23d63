"""REST on any broker of a cluster, and committed offsets, while brokers fail."""

import threading
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.testing import Cluster
from conveyor.testing.embedded_cluster import ClusterBroker
from tests.clients.rest_client import Answer, Rest

TOPIC = {"name": "orders", "partitions": 3, "replicas": 3, "config": {"min.insync.replicas": 2}}
MESSAGES = "/subscriptions/billing/messages"


@pytest.fixture
def cluster(conveyor_cluster: Cluster) -> Cluster:
    """Three brokers. Each leads a partition of the topic `orders`, which has the subscription `billing`."""
    broker = conveyor_cluster.brokers[1]
    assert ask(broker, "POST", "/topics", TOPIC).status == 201
    subscription = {"name": "billing", "start": "earliest"}
    assert ask(broker, "POST", "/topics/orders/subscriptions", subscription).status == 201
    return conveyor_cluster


def ask(
    broker: ClusterBroker, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None
) -> Answer:
    """Ask one broker over a connection of its own."""
    with closing(Rest(broker)) as rest:
        return rest.ask(method, path, body, query)


def publish(broker: ClusterBroker, *partitions: int) -> list[str]:
    messages = [{"payload": "m", "partition": number} for number in partitions]
    results = ask(broker, "POST", "/topics/orders/messages:batch", {"messages": messages}).json["results"]
    return [result["message_id"] for result in results]


def lease(broker: ClusterBroker, **query: object) -> list[dict[str, Any]]:
    answer = ask(broker, "GET", MESSAGES, query=query)
    assert answer.status == 200, answer.body
    messages: list[dict[str, Any]] = answer.json["messages"]
    return messages


def lease_all(broker: ClusterBroker) -> list[dict[str, Any]]:
    leased: list[dict[str, Any]] = []
    while messages := lease(broker, max_messages=100, wait="1s"):
        leased += messages
    return leased


def ack(broker: ClusterBroker, leased: list[dict[str, Any]]) -> list[str]:
    ack_ids = [message["ack_id"] for message in leased]
    answer = ask(broker, "POST", "/subscriptions/billing/ack", {"ack_ids": ack_ids})
    assert answer.status == 200, answer.body
    return [result["status"] for result in answer.json["results"]]


def test_any_broker_serves_all_partitions(cluster: Cluster) -> None:
    published = [message_id for broker in cluster.brokers.values() for message_id in publish(broker, 0, 1, 2)]
    leased = lease_all(cluster.brokers[2])
    assert sorted(message["message_id"] for message in leased) == sorted(published)
    assert ack(cluster.brokers[3], leased) == ["ok"] * 9
    stats = ask(cluster.brokers[1], "GET", "/subscriptions/billing").json
    assert (stats["unsettled"], stats["acked"], stats["ack_delay"]["count"]) == (0, 9, 9)
    assert len(ask(cluster.brokers[2], "GET", "/topics/orders/messages").json["messages"]) == 9


def test_any_broker_takes_times_and_durations(cluster: Cluster) -> None:
    """They have types of their own, which the calls to the leaders of two of the three partitions must carry."""
    for broker in cluster.brokers.values():
        publish(broker, 0, 1, 2)
        leased: list[dict[str, Any]] = []
        while messages := lease(broker, max_messages=100, wait="100ms", visibility="20s"):
            leased += messages
        assert {message["message_id"].partition("-")[0] for message in leased} == {"0", "1", "2"}
        for message in leased:
            ack_ids = [message["ack_id"]]
            extended = ask(broker, "POST", "/subscriptions/billing/extend", {"ack_ids": ack_ids, "visibility": "30s"})
            assert extended.status == 200, extended.body
            nacked = ask(broker, "POST", "/subscriptions/billing/nack", {"ack_ids": ack_ids, "delay": "1h"})
            assert nacked.status == 200, nacked.body
        sought = ask(broker, "POST", "/subscriptions/billing/seek", {"start": "2026-01-31T12:00:00Z"})
        assert sought.status == 200, sought.body
    assert all(broker.is_running for broker in cluster.brokers.values())


def test_acknowledged_messages_are_not_delivered_again_by_the_next_leader(cluster: Cluster) -> None:
    publish(cluster.brokers[1], *[0, 1, 2] * 10)
    leased = lease_all(cluster.brokers[1])
    assert len(leased) == 30
    assert ack(cluster.brokers[2], leased[:15]) == ["ok"] * 15
    victim = cluster.leader("orders", 0)
    assert victim is not None
    cluster.kill(victim)
    first, second = (broker for node_id, broker in cluster.brokers.items() if node_id != victim)
    assert len(publish(first, 0, 1, 2)) == 3
    statuses = ack(second, leased[15:])
    in_doubt = {message["message_id"] for message, status in zip(leased[15:], statuses, strict=True) if status != "ok"}
    again = {message["message_id"] for message in lease_all(second)}
    settled = {message["message_id"] for message in leased} - in_doubt
    assert not again & settled
    assert in_doubt <= again
    assert len(again) == len(in_doubt) + 3


def test_delayed_messages_come_once_after_a_change_of_leaders(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    later = {"name": "orders-later", "config": {"delay.target": "orders"}}
    assert ask(broker, "POST", "/topics", later).json["partitions"] == 3
    messages = [
        {"payload": f"{number}", "partition": number % 3, "delay": "0s" if number % 2 else "3s"} for number in range(12)
    ]
    answer = ask(broker, "POST", "/topics/orders-later/messages:batch", {"messages": messages})
    assert [result["status"] for result in answer.json["results"]] == ["ok"] * 12
    assert [result["offset"] for result in answer.json["results"]] == [number // 3 for number in range(12)]
    cancelled = answer.json["results"][2]["message_id"]
    assert ask(cluster.brokers[2], "DELETE", f"/topics/orders-later/messages/{cancelled}").status == 204
    victim = cluster.leader("orders", 0)
    assert victim is not None
    cluster.kill(victim)
    survivor = next(broker for node_id, broker in cluster.brokers.items() if node_id != victim)
    publish(survivor, 0, 1, 2)
    leased: list[dict[str, Any]] = []
    give_up = time.monotonic() + 60
    while len(leased) < 14 and time.monotonic() < give_up:
        leased += lease(survivor, max_messages=100, wait="1s", visibility="10m")
    leased += lease(survivor, max_messages=100, wait="3s")
    expected = [*(str(number) for number in range(12) if number != 2), "m", "m", "m"]
    assert sorted(message["payload"] for message in leased) == sorted(expected)
    image = survivor.image()
    for name in ("orders-later", "__delay_state.orders-later"):
        places = [(partition.leader, partition.replicas) for partition in image.topics[name].partitions]
        assert places == [(partition.leader, partition.replicas) for partition in image.topics["orders"].partitions]


def test_dead_letters_are_as_safe_as_their_originals(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    publish(broker, 0)
    (message,) = lease(broker, wait="5s")
    rejected = {"ack_ids": [message["ack_id"]], "reason": "bad"}
    assert ask(broker, "POST", "/subscriptions/billing/reject", rejected).status == 200
    broker.wait_until(lambda image: "orders.dlq" in image.topics, "no dead-letter topic")
    topic = broker.image().topics["orders.dlq"]
    assert {len(partition.replicas) for partition in topic.partitions} == {3}
    assert topic.config["min.insync.replicas"] == "2"


def test_settlements_do_not_wait_while_too_few_replicas_are_in_sync(cluster: Cluster) -> None:
    """One broker survives and leads all partitions, and the logs of its queues can commit nothing."""
    publish(cluster.brokers[1], *[0, 1, 2] * 4)
    leased = lease_all(cluster.brokers[1])
    assert len(leased) == 12
    publish(cluster.brokers[1], 0, 1, 2)
    survivor = cluster.brokers[1]
    cluster.kill(2)
    cluster.kill(3)
    body = {"ack_ids": [message["ack_id"] for message in leased]}
    answers = [
        ask(survivor, "POST", "/subscriptions/billing/ack", body),
        ask(survivor, "POST", "/subscriptions/billing/seek", {"start": "latest"}),
        ask(survivor, "POST", "/topics/orders/messages", {"payload": "m", "delay": "1h"}),
        ask(survivor, "GET", MESSAGES, query={"wait": "1s", "max_messages": 100}),
    ]
    assert [answer.status for answer in answers] == [503] * 4, [answer.body for answer in answers]
    assert all(answer.json["retriable"] for answer in answers)
    cluster.restart(2)
    cluster.restart(3)
    cluster.wait_until_in_sync()
    statuses = ack(survivor, leased)
    settled = {message["message_id"] for message, status in zip(leased, statuses, strict=True) if status == "ok"}
    assert len(settled) >= 4  # Those of the partition that the survivor has led all the time.
    again = {message["message_id"] for message in lease_all(survivor)}
    assert not again & settled
    assert len(again | settled) == 15


def test_request_that_waits_gets_a_message_of_the_next_leader(cluster: Cluster) -> None:
    victim = cluster.leader("orders", 1)
    assert victim is not None
    waits, publishes = (broker for node_id, broker in cluster.brokers.items() if node_id != victim)
    assert ask(waits, "POST", "/topics", TOPIC | {"name": "quiet"}).status == 201
    assert ask(waits, "POST", "/topics/quiet/subscriptions", {"name": "idle"}).status == 201
    leased: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: leased.extend(lease(waits, wait="20s")))
    idle = threading.Thread(target=lambda: ask(waits, "GET", "/subscriptions/idle/messages", query={"wait": "20s"}))
    idle.start()
    waiting.start()
    cluster.kill(victim)
    (message_id,) = publish(publishes, 1)
    waiting.join(30)
    assert [message["message_id"] for message in leased] == [message_id]
    assert idle.is_alive(), "the message came at the end of the wait"
    idle.join(30)


def test_committed_offsets_outlive_their_coordinator(cluster: Cluster) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "readers", "log_level": 0})
    place = TopicPartition("orders", 0, 7)
    publish(cluster.brokers[1], 0)
    consumer.commit(offsets=[place], asynchronous=False)
    image = cluster.brokers[1].image()
    coordinators = {partition.leader for partition in image.topics["__consumer_offsets"].partitions}
    assert coordinators == {1, 2, 3}
    for node_id in sorted(coordinators)[:2]:
        cluster.kill(node_id)
        assert consumer.committed([place], timeout=30)[0].offset == 7
        cluster.restart(node_id)
        cluster.wait_until_in_sync()
    consumer.close()


def coordinator_of(cluster: Cluster, request_id: str) -> int:
    """Return the broker that runs the requests with an id."""
    partitions = cluster.brokers[1].image().topics["__transaction_state"].partitions
    return partitions[partition_for_key(request_id, len(partitions))].leader


def transaction(request_id: str, leased: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a request that publishes a result of each message, and acknowledges all of them."""
    return {
        "id": request_id,
        "messages": [
            {"topic": "invoices", "payload": message["message_id"], "partition": number % 3}
            for number, message in enumerate(leased)
        ],
        "acknowledge": [{"subscription": "billing", "ack_ids": [message["ack_id"] for message in leased]}],
    }


def invoices(broker: ClusterBroker) -> list[str]:
    messages = until_answered(broker, "GET", "/topics/invoices/messages", query={"limit": 100}).json["messages"]
    return [message["payload"] for message in messages]


def test_repeated_request_gets_the_first_answer_of_each_broker_and_of_the_next_coordinator(cluster: Cluster) -> None:
    inputs = publish(cluster.brokers[1], 0, 1, 2)
    assert ask(cluster.brokers[1], "POST", "/topics", {**TOPIC, "name": "invoices"}).status == 201
    request = transaction("order-4711", lease_all(cluster.brokers[1]))
    first = ask(cluster.brokers[1], "POST", "/transactions", request)
    assert first.status == 200, first.body
    for broker in cluster.brokers.values():
        assert ask(broker, "POST", "/transactions", request).json == first.json
    victim = coordinator_of(cluster, "order-4711")
    cluster.kill(victim)
    for broker in (broker for node_id, broker in cluster.brokers.items() if node_id != victim):
        assert until_answered(broker, "POST", "/transactions", request).json == first.json
        assert sorted(invoices(broker)) == sorted(inputs)
    stats = until_answered(broker, "GET", "/subscriptions/billing").json
    assert (stats["unsettled"], stats["pending"]) == (0, 0)


@pytest.mark.parametrize("pause_s", [0.0, 0.01, 0.05])
def test_request_is_executed_once_although_its_coordinator_is_killed(cluster: Cluster, pause_s: float) -> None:
    """Its client repeats it, and leases the messages again if it was aborted."""
    inputs = publish(cluster.brokers[1], *[0, 1, 2] * 5)
    for name in ("invoices", "other"):
        assert ask(cluster.brokers[1], "POST", "/topics", {**TOPIC, "name": name}).status == 201
    other = {"messages": [{"topic": "other", "payload": "x"}]}
    assert ask(cluster.brokers[1], "POST", "/transactions", other).status == 200  # Now there are coordinators.
    victim = coordinator_of(cluster, "order-4711")
    broker = next(broker for node_id, broker in cluster.brokers.items() if node_id != victim)
    request = transaction("order-4711", lease_all(broker))
    asking = threading.Thread(target=lambda: ask(broker, "POST", "/transactions", request))
    asking.start()
    time.sleep(pause_s)
    cluster.kill(victim)
    answer = until_answered(broker, "POST", "/transactions", request)
    if answer.status != 200:
        assert answer.problem[:2] == (409, "lease_lost")
        again = transaction("order-4712", lease_until(broker, len(inputs)))
        assert until_answered(broker, "POST", "/transactions", again).status == 200
    asking.join(30)
    assert sorted(invoices(broker)) == sorted(inputs)
    stats = until_answered(broker, "GET", "/subscriptions/billing").json
    assert (stats["unsettled"], stats["pending"]) == (0, 0)


def until_answered(
    broker: ClusterBroker, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None
) -> Answer:
    """Repeat a request while its answer says that it may be repeated."""
    for _ in range(100):
        answer = ask(broker, method, path, body, query)
        if answer.status < 400 or not answer.json["retriable"]:
            return answer
        time.sleep(0.2)  # As a client does between two attempts.
    raise AssertionError(answer.body)


def lease_until(broker: ClusterBroker, count: int) -> list[dict[str, Any]]:
    """Lease until there are as many messages; those of killed leaders come with the next ones."""
    leased: list[dict[str, Any]] = []
    for _ in range(100):
        answer = ask(broker, "GET", MESSAGES, query={"max_messages": 100, "wait": "200ms"})
        leased += answer.json["messages"] if answer.status == 200 else []
        if len(leased) >= count and answer.status == 200:
            return leased
    raise AssertionError(leased)
