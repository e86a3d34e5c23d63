"""A gateway in front of a cluster: REST through it while brokers fail, and what Kafka clients see of it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from conveyor.cli.cluster.cluster_client import cluster_client
from conveyor.kernel.ids import is_gateway
from conveyor.testing import Cluster
from conveyor.testing.embedded_cluster import ClusterBroker
from tests.clients.rest_client import Answer, Rest
from tests.unit.cli.commands import runner

TOPIC = {"name": "orders", "partitions": 3, "replicas": 3, "config": {"min.insync.replicas": 2}}
QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20}
EARLIEST = {"auto.offset.reset": "earliest"}


class Gateway(ClusterBroker):
    """A gateway of a cluster, with a session of its own."""

    def __init__(self, cluster: Cluster, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(99, cluster, settings or {})
        del self._settings["broker.node_id"]
        self._settings |= {"broker.gateway": True, "broker.metadata": "zookeeper://in.this.process"}


@pytest.fixture
def cluster(conveyor_cluster: Cluster) -> Cluster:
    return conveyor_cluster


@pytest.fixture
def gateway(cluster: Cluster) -> Iterator[Gateway]:
    gateway = Gateway(cluster)
    gateway.start()
    yield gateway
    if gateway.is_running:
        gateway.stop()


def ask(gateway: Gateway, method: str, path: str, body: object = None, **query: object) -> Answer:
    with closing(Rest(gateway)) as rest:
        return rest.ask(method, path, body, query)


def publish(gateway: Gateway, count: int) -> list[str]:
    messages = [{"payload": "m", "partition": number % 3} for number in range(count)]
    answer = ask(gateway, "POST", "/topics/orders/messages:batch", {"messages": messages})
    assert answer.status == 200, answer.body
    return [result["message_id"] for result in answer.json["results"]]


def lease_all(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    leased: list[dict[str, Any]] = []
    while len(leased) < count:
        answer = ask(gateway, "GET", "/subscriptions/billing/messages", max_messages=100, wait="10s")
        assert answer.status == 200, answer.body
        leased += answer.json["messages"]
    return leased


def ack(gateway: Gateway, leased: list[dict[str, Any]]) -> list[str]:
    answer = ask(gateway, "POST", "/subscriptions/billing/ack", {"ack_ids": [item["ack_id"] for item in leased]})
    return [result["status"] for result in answer.json["results"]]


def subscribe(gateway: Gateway) -> None:
    assert ask(gateway, "POST", "/topics", TOPIC).status == 201
    subscription = {"name": "billing", "start": "earliest"}
    assert ask(gateway, "POST", "/topics/orders/subscriptions", subscription).status == 201


def test_a_gateway_serves_transactions(cluster: Cluster, gateway: Gateway) -> None:
    """It sends them to brokers, which know the answer to a repeated one."""
    subscribe(gateway)
    for request_id in (None, "order-4711"):
        publish(gateway, 3)
        body = {
            "id": request_id,
            "messages": [{"topic": "invoices", "payload": "paid"}],
            "acknowledge": [
                {"subscription": "billing", "ack_ids": [message["ack_id"] for message in lease_all(gateway, 3)]}
            ],
        }
        executed = ask(gateway, "POST", "/transactions", body)
        assert executed.status == 200, executed.body
        if request_id is not None:
            with closing(Rest(cluster.brokers[1])) as rest:
                assert rest.post("/transactions", body).json == executed.json
    assert ask(gateway, "GET", "/subscriptions/billing").json["unsettled"] == 0
    assert len(ask(gateway, "GET", "/topics/invoices/messages", limit=10).json["messages"]) == 2


def test_a_gateway_serves_queues_while_brokers_fail(cluster: Cluster, gateway: Gateway) -> None:
    subscribe(gateway)
    published = publish(gateway, 9)
    leased = lease_all(gateway, 9)
    assert sorted(message["message_id"] for message in leased) == sorted(published)
    assert ack(gateway, leased) == ["ok"] * 9
    victim = cluster.leader("orders", 0)
    assert victim
    cluster.kill(victim)
    published = publish(gateway, 9)
    leased = lease_all(gateway, 9)
    assert sorted(message["message_id"] for message in leased) == sorted(published)
    assert ack(gateway, leased) == ["ok"] * 9
    assert ask(gateway, "GET", "/subscriptions/billing").json["acked"] >= 9
    assert len(ask(gateway, "GET", "/topics/orders/messages", partition=0).json["messages"]) == 6
    assert ask(gateway, "GET", "/readyz").status == 200


def test_commands_find_the_http_address_by_way_of_a_gateway(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Or take the gateway's own, if the user names it."""
    subscribe(gateway)
    run = runner(monkeypatch, capfd)
    monkeypatch.delenv("CONVEYOR_BOOTSTRAP", raising=False)
    for address in (("--bootstrap", gateway.bootstrap_servers), ("--http", gateway.http_url)):
        ended = run("queue", "list", *address)
        assert (ended.exit_code, ended.out.count("billing")) == (0, 1), ended.error


@pytest.mark.parametrize("wait", ["0s", "1s"])
def test_a_gateway_without_brokers_does_not_answer_that_there_are_no_messages(
    cluster: Cluster, gateway: Gateway, wait: str
) -> None:
    subscribe(gateway)
    for broker in cluster.brokers.values():
        broker.kill()
    status, kind, _ = ask(gateway, "GET", "/subscriptions/billing/messages", wait=wait).problem
    assert (status, kind) == (503, "not_leader")


def test_kafka_clients_reach_the_brokers_by_way_of_a_gateway(cluster: Cluster, gateway: Gateway) -> None:
    subscribe(gateway)
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap_servers, **QUIET})
    metadata = admin.list_topics(timeout=30)
    assert sorted(metadata.brokers) == [1, 2, 3]
    assert {partition.leader for partition in metadata.topics["orders"].partitions.values()} <= {1, 2, 3}
    producer = Producer({"bootstrap.servers": gateway.bootstrap_servers, "enable.idempotence": True, **QUIET})
    errors = []
    for number in range(3):
        producer.produce(
            "orders", b"m", partition=number, on_delivery=lambda error, _: errors.append(error) if error else None
        )
    assert producer.flush(30) == 0
    assert not errors
    consumer = Consumer({"bootstrap.servers": gateway.bootstrap_servers, "group.id": "readers", **EARLIEST, **QUIET})
    consumer.subscribe(["orders"])
    assert len(consumer.consume(3, 30)) == 3
    consumer.close()
    assert len(lease_all(gateway, 3)) == 3
    gateway.kill()
    assert ask_broker(cluster, "/topics/orders").json["name"] == "orders"


def ask_broker(cluster: Cluster, path: str) -> Answer:
    with closing(Rest(cluster.brokers[1])) as rest:
        return rest.ask("GET", path)


def test_a_gateway_serves_all_of_rest(gateway: Gateway) -> None:
    subscribe(gateway)
    with closing(Rest(gateway)) as rest:
        rest.publish("orders", "a", "b", "c")
        assert len(rest.get("/subscriptions/billing/peek").json["messages"]) == 3
        rejected = {"ack_ids": [message["ack_id"] for message in lease_all(gateway, 3)], "reason": "no stock"}
        assert rest.post("/subscriptions/billing/reject", rejected).status == 200
        while len(rest.get("/dlq/billing").json["messages"]) < 3:
            pass
        assert [item["depth"] for item in rest.get("/dlq").json["topics"]] == [3]
        assert rest.post("/dlq/billing/redrive").json == {"redriven": 3, "unknown": []}
        assert ack(gateway, lease_all(gateway, 3)) == ["ok"] * 3
        assert rest.post("/subscriptions/billing/seek", {"start": "earliest"}).status == 200
        assert len(lease_all(gateway, 3)) == 3
        schedule = {"name": "nightly", "topic": "orders", "cron": "0 3 * * *"}
        assert rest.post("/schedules", schedule).status == 201
        assert rest.get("/schedules/nightly").json["topic"] == "orders"
        assert rest.patch("/topics/orders", {"config": {"retention.ms": 60_000}}).status == 200
        assert rest.get("/metrics").status == 200
        assert rest.delete("/subscriptions/billing").status == 204
        assert rest.delete("/topics/orders").status == 204


def test_a_gateway_uses_the_settings_of_all_brokers(cluster: Cluster, gateway: Gateway) -> None:
    assert ask(gateway, "POST", "/topics", {"name": "plain", "replicas": 3}).status == 201
    brokers = {broker.bootstrap_servers for broker in cluster.brokers.values()}
    with cluster_client(min(brokers)) as client:
        client.change_settings({"min.insync.replicas": "2", "log.retention.ms": "60000"})
    wanted = {"min.insync.replicas": "2", "retention.ms": "60000"}
    while not wanted.items() <= ask(gateway, "GET", "/topics/plain").json["effective_config"].items():
        pass


def test_a_gateway_holds_no_replicas(cluster: Cluster, gateway: Gateway) -> None:
    refused = ask(gateway, "POST", "/topics", {"name": "wide", "replicas": 4})
    assert (refused.status, refused.json["kind"]) == (400, "invalid_replication_factor")
    subscribe(gateway)
    image = cluster.brokers[1].image()
    assert sorted(image.brokers) == [1, 2, 3]
    assert all(partition.replicas != () for partition in image.topics["orders"].partitions)
    assert list(gateway.disk.list("")) == []


def test_a_gateway_writes_what_it_refuses_to_the_audit() -> None:
    """It leads no partition. The brokers here permit everything."""
    settings = {"access.enabled": True, "access.super_users": "User:ANONYMOUS"}
    with Cluster(settings=settings) as cluster:
        gateway = Gateway(cluster, settings | {"access.super_users": ""})
        gateway.start()
        assert ask(gateway, "POST", "/topics", TOPIC).status == 403
        gateway.stop()
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", **EARLIEST, **QUIET})
        consumer.subscribe(["__audit"])
        with closing(consumer):
            while (message := consumer.poll(10)) is None or message.error() is not None:
                pass
    event = json.loads(message.value() or b"")
    assert [event[name] for name in ("request", "resource", "allowed")] == ["POST /topics", "orders", False]
    assert is_gateway(event["broker"])
