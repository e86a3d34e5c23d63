"""FIFO queues over SQS: order in each message group, de-duplication for five minutes."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from conveyor.testing import Broker
from tests.clients.rest_client import Rest
from tests.clients.sqs.sqs_requests import arn, attribute, bodies, receive, refusal_of

ALL: dict[str, Any] = {"MessageSystemAttributeNames": ["All"]}
BY_GROUP = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}


@pytest.fixture
def fifo(make_queue: Callable[..., str]) -> str:
    """The URL of a FIFO queue that de-duplicates by content."""
    return make_queue(".fifo", FifoQueue="true", ContentBasedDeduplication="true", VisibilityTimeout="60")


def send(sqs: Any, url: str, body: str, group: str = "g", **members: str) -> dict[str, Any]:
    sent: dict[str, Any] = sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **members)
    return sent


def delete(sqs: Any, url: str, messages: list[dict[str, Any]]) -> None:
    for message in messages:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def test_fifo_queue_shows_its_attributes(sqs: Any, fifo: str) -> None:
    shown = sqs.get_queue_attributes(QueueUrl=fifo, AttributeNames=["All"])["Attributes"]
    assert {name: shown[name] for name in ("FifoQueue", "ContentBasedDeduplication")} == {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "true",
    }
    assert (shown["DeduplicationScope"], shown["FifoThroughputLimit"]) == ("queue", "perQueue")


@pytest.mark.parametrize("name", ["plain", ".fifo", "a b.fifo", "a" * 76 + ".fifo"])
def test_name_of_a_fifo_queue_ends_in_fifo(sqs: Any, name: str) -> None:
    refused = refusal_of(sqs.create_queue, QueueName=name, Attributes={"FifoQueue": "true"})
    assert refused.code == "InvalidParameterValue"


def test_group_is_received_in_order(sqs: Any, fifo: str) -> None:
    numbers = [int(send(sqs, fifo, f"m{number}")["SequenceNumber"]) for number in range(5)]
    assert numbers == sorted(set(numbers))
    received = receive(sqs, fifo, 3, **ALL)
    assert receive(sqs, fifo) == []
    delete(sqs, fifo, received)
    received += receive(sqs, fifo, **ALL)
    assert bodies(received) == [f"m{number}" for number in range(5)]
    assert [int(message["Attributes"]["SequenceNumber"]) for message in received] == numbers
    assert {message["Attributes"]["MessageGroupId"] for message in received} == {"g"}


def test_later_messages_of_a_group_wait_for_those_in_flight(sqs: Any, fifo: str, broker: Broker) -> None:
    send(sqs, fifo, "a1", "a")
    send(sqs, fifo, "b1", "b")
    first = receive(sqs, fifo)
    assert sorted(bodies(first)) == ["a1", "b1"]
    send(sqs, fifo, "a2", "a")
    send(sqs, fifo, "c1", "c")
    assert bodies(receive(sqs, fifo)) == ["c1"]
    delete(sqs, fifo, [message for message in first if message["Body"] == "a1"])
    assert bodies(receive(sqs, fifo)) == ["a2"]
    broker.clock.advance(seconds=60)
    assert sorted(bodies(receive(sqs, fifo)))[:2] == ["a2", "b1"]


def test_duplicate_within_five_minutes_is_the_first_message(sqs: Any, fifo: str, broker: Broker) -> None:
    first = send(sqs, fifo, "x", MessageDeduplicationId="id")
    again = send(sqs, fifo, "y", "other", MessageDeduplicationId="id")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    [message] = receive(sqs, fifo, **ALL)
    assert message["Attributes"]["MessageDeduplicationId"] == "id"
    delete(sqs, fifo, [message])
    broker.clock.advance(seconds=299)
    assert send(sqs, fifo, "z", MessageDeduplicationId="id")["MessageId"] == first["MessageId"]
    broker.clock.advance(seconds=2)
    assert send(sqs, fifo, "new", MessageDeduplicationId="id")["MessageId"] != first["MessageId"]
    assert bodies(receive(sqs, fifo)) == ["new"]


def test_content_is_the_id_if_the_queue_says_so(sqs: Any, fifo: str, make_queue: Callable[..., str]) -> None:
    assert send(sqs, fifo, "x")["MessageId"] == send(sqs, fifo, "x")["MessageId"]
    assert len(receive(sqs, fifo)) == 1
    strict = make_queue(".fifo", FifoQueue="true")
    refused = refusal_of(sqs.send_message, QueueUrl=strict, MessageBody="x", MessageGroupId="g")
    text = (
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
    )
    assert refused == ("InvalidParameterValue", text, 400)


def test_groups_de_duplicate_apart_if_the_queue_says_so(
    sqs: Any, broker: Broker, make_queue: Callable[..., str]
) -> None:
    url = make_queue(".fifo", FifoQueue="true", **BY_GROUP)
    sent = [send(sqs, url, "x", group, MessageDeduplicationId="id")["MessageId"] for group in ("a", "b", "a")]
    assert sent[0] == sent[2] != sent[1]
    messages = receive(sqs, url, **ALL)
    assert [message["Attributes"]["MessageDeduplicationId"] for message in messages] == ["id", "id"]
    rest = Rest(broker)
    assert rest.get(f"/topics/{url.rpartition('/')[2]}").json["config"]["dedup.window.ms"] == "300000"
    rest.close()


@pytest.mark.parametrize("scope", [{}, BY_GROUP], ids=["queue", "group"])
def test_purged_queue_takes_an_id_again(sqs: Any, make_queue: Callable[..., str], scope: dict[str, str]) -> None:
    url = make_queue(".fifo", FifoQueue="true", **scope)
    for body in ("a", "b", "c"):
        send(sqs, url, body, MessageDeduplicationId="1")
        sent = send(sqs, url, "again", MessageDeduplicationId="1")
        [message] = receive(sqs, url, **ALL)
        assert (message["MessageId"], message["Body"]) == (sent["MessageId"], body)
        assert message["Attributes"]["MessageDeduplicationId"] == "1"
        sqs.purge_queue(QueueUrl=url)
        assert receive(sqs, url) == []


def test_members_of_the_other_kind_of_queue_are_refused(sqs: Any, fifo: str, queue: str) -> None:
    refused = refusal_of(sqs.send_message, QueueUrl=fifo, MessageBody="x")
    assert refused == ("MissingParameter", "The request must contain the parameter MessageGroupId.", 400)
    delayed = refusal_of(sqs.send_message, QueueUrl=fifo, MessageBody="x", MessageGroupId="g", DelaySeconds=5)
    reason = "The request include parameter that is not valid for this queue type."
    text = f"Value 5 for parameter DelaySeconds is invalid. Reason: {reason}"
    assert delayed == ("InvalidParameterValue", text, 400)
    refused = refusal_of(sqs.send_message, QueueUrl=queue, MessageBody="x", MessageDeduplicationId="id")
    assert refused.code == "InvalidParameterValue"
    refused = refusal_of(sqs.send_message, QueueUrl=fifo, MessageBody="x", MessageGroupId="a b")
    assert refused.message.endswith("can only include alphanumeric and punctuation characters. 1 to 128 in length.")
    refused = refusal_of(sqs.set_queue_attributes, QueueUrl=queue, Attributes={"FifoQueue": "true"})
    assert refused.code == "InvalidAttributeName"
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "true"})
    refused = refusal_of(sqs.set_queue_attributes, QueueUrl=fifo, Attributes={"FifoQueue": "false"})
    reason = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    assert refused == ("InvalidAttributeValue", reason, 400)


def test_flags_may_begin_with_a_capital(sqs: Any, make_queue: Callable[..., str]) -> None:
    url = make_queue(".fifo", FifoQueue="True", ContentBasedDeduplication="True")
    assert attribute(sqs, url, "ContentBasedDeduplication") == "true"
    send(sqs, url, "x")
    assert bodies(receive(sqs, url)) == ["x"]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({}, "The request must contain the parameter MessageGroupId."),
        (
            {"MessageGroupId": "g"},
            (
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided"
                " explicitly"
            ),
        ),
    ],
)
def test_batch_without_ids_fails_as_a_whole(
    sqs: Any, make_queue: Callable[..., str], members: dict[str, str], reason: str
) -> None:
    url = make_queue(".fifo", FifoQueue="true")
    good = {"Id": "a", "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "id"}
    entries = [good, {"Id": "b", "MessageBody": "y", **members}]
    refused = refusal_of(sqs.send_message_batch, QueueUrl=url, Entries=entries)
    assert refused == ("InvalidParameterValue", reason, 400)
    assert receive(sqs, url) == []


def test_messages_of_a_group_are_received_together(sqs: Any, fifo: str, broker: Broker) -> None:
    for body in ("a1", "b1", "a2", "b2", "a3"):
        send(sqs, fifo, body, body[0])
    assert attribute(sqs, fifo, "ApproximateNumberOfMessages") == "5"
    assert bodies(receive(sqs, fifo)) == ["a1", "a2", "a3", "b1", "b2"]
    assert attribute(sqs, fifo, "ApproximateNumberOfMessages") == "0"
    broker.clock.advance(seconds=60)
    assert bodies(receive(sqs, fifo, 1)) == ["a1"]
    assert attribute(sqs, fifo, "ApproximateNumberOfMessages") == "4"
    assert bodies(receive(sqs, fifo)) == ["b1", "b2"]
    assert attribute(sqs, fifo, "ApproximateNumberOfMessages") == "2"


def test_standard_message_keeps_its_group(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageGroupId="tenant")
    [message] = receive(sqs, queue, **ALL)
    assert message["Attributes"]["MessageGroupId"] == "tenant"


def test_fifo_message_is_not_deleted_after_its_timeout(sqs: Any, fifo: str, broker: Broker) -> None:
    send(sqs, fifo, "x")
    messages = receive(sqs, fifo)
    broker.clock.advance(seconds=60)
    handle = messages[0]["ReceiptHandle"]
    refused = refusal_of(sqs.delete_message, QueueUrl=fifo, ReceiptHandle=handle)
    text = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    assert refused == ("InvalidParameterValue", text, 400)
    assert bodies(receive(sqs, fifo)) == ["x"]


def test_dead_letters_of_a_fifo_queue_need_one(
    sqs: Any, fifo: str, queue: str, make_queue: Callable[..., str], broker: Broker
) -> None:
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, queue), "maxReceiveCount": 1})
    refused = refusal_of(sqs.set_queue_attributes, QueueUrl=fifo, Attributes={"RedrivePolicy": policy})
    assert refused.message.endswith("Dead-letter queue must be same type of queue as the source.")
    dead = make_queue(".fifo", FifoQueue="true")
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, dead), "maxReceiveCount": 1})
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"RedrivePolicy": policy})
    send(sqs, fifo, "x")
    assert bodies(receive(sqs, fifo)) == ["x"]
    broker.clock.advance(seconds=60)
    assert receive(sqs, fifo) == []
    [message] = receive(sqs, dead, WaitTimeSeconds=20, **ALL)
    assert (message["Body"], message["Attributes"]["MessageGroupId"]) == ("x", "g")
