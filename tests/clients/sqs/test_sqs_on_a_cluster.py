"""SQS on three brokers: every broker serves every queue, and what a queue is survives all of them."""

from typing import Any

import pytest

from conveyor.testing import Broker, Cluster
from tests.clients.sqs.conftest import connect
from tests.clients.sqs.sqs_requests import bodies, receive, refusal_of


@pytest.fixture
def clients() -> Any:
    settings = {"broker.default_replication_factor": 3, "broker.num_partitions": 3}
    with Cluster(brokers=3, settings=settings) as cluster:
        made = [connect(broker) for broker in cluster.brokers.values()]
        yield made
        for client in made:
            client.close()


def test_every_broker_serves_every_queue(clients: list[Any]) -> None:
    first, second, third = clients
    first.create_queue(QueueName="shared", tags={"team": "a"})
    urls = [client.get_queue_url(QueueName="shared")["QueueUrl"] for client in clients]
    assert len(set(urls)) == 3, "each begins as the client has asked"
    for number in range(9):
        clients[number % 3].send_message(QueueUrl=urls[0], MessageBody=str(number))
    received: list[dict[str, Any]] = []
    while len(received) < 9:
        for client, url in zip(clients, urls, strict=True):
            received += receive(client, url, WaitTimeSeconds=1)
    assert sorted(bodies(received)) == [str(number) for number in range(9)]
    for index, message in enumerate(received):
        clients[index % 3].delete_message(QueueUrl=urls[1], ReceiptHandle=message["ReceiptHandle"])
    counts = second.get_queue_attributes(QueueUrl=urls[1], AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == counts["ApproximateNumberOfMessagesNotVisible"] == "0"
    assert third.list_queue_tags(QueueUrl=urls[2])["Tags"] == {"team": "a"}
    third.delete_queue(QueueUrl=urls[2])
    assert refusal_of(first.get_queue_url, QueueName="shared").code.endswith("NonExistentQueue")


def test_queue_survives_a_restart() -> None:
    with Broker(memory=True) as broker:
        before = connect(broker)
        url = before.create_queue(QueueName="kept", Attributes={"DelaySeconds": "0", "VisibilityTimeout": "77"})[
            "QueueUrl"
        ]
        before.tag_queue(QueueUrl=url, Tags={"a": "b"})
        sent = before.send_message(QueueUrl=url, MessageBody="x")
        before.close()
        broker.stop()
        broker.start()
        after = connect(broker)
        assert after.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "b"}
        shown = after.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert shown["VisibilityTimeout"] == "77"
        [message] = receive(after, url, WaitTimeSeconds=20)
        assert message["MessageId"] == sent["MessageId"]
        after.close()
