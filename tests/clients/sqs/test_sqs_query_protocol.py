"""The query protocol of older SDKs: forms, or URLs, to `/` or to the URL of a queue, answered in XML."""

from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pytest
from requests import Response, get, post

from conveyor.testing import Broker
from tests.clients.sqs.sqs_requests import bodies, receive

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


def texts(answer: Response, name: str) -> list[str | None]:
    """Return the texts of all elements of a name."""
    return [element.text for element in ET.fromstring(answer.content).iter(f"{NAMESPACE}{name}")]


def ask(url: str, action: str, **members: str) -> Response:
    fields = {name.replace("__", "."): value for name, value in members.items()}
    return post(url, data={"Action": action, "Version": "2012-11-05", **fields}, timeout=60)


def test_messages_make_a_round_trip(broker: Broker, sqs: Any) -> None:
    created = ask(
        broker.http_url, "CreateQueue", QueueName="old", Attribute__1__Name="DelaySeconds", Attribute__1__Value="0"
    )
    assert created.headers["Content-Type"] == "text/xml"
    assert texts(created, "RequestId") == [created.headers["x-amzn-RequestId"]]
    [url] = texts(created, "QueueUrl")
    assert url == f"{broker.http_url}/000000000000/old"
    attribute = {"MessageAttribute__1__Name": "n", "MessageAttribute__1__Value__DataType": "Number"}
    sent = ask(url, "SendMessage", MessageBody='a <b> & "c"', **attribute, MessageAttribute__1__Value__StringValue="1")
    received = ask(url, "ReceiveMessage", AttributeName__1="All", MessageAttributeName__1="All")
    assert texts(received, "Body") == ['a <b> & "c"']
    assert texts(received, "MessageId") == texts(sent, "MessageId")
    assert texts(received, "MD5OfMessageAttributes") == texts(sent, "MD5OfMessageAttributes")
    assert texts(received, "StringValue") == ["1"]
    [handle] = texts(received, "ReceiptHandle")
    assert ask(url, "DeleteMessage", ReceiptHandle=handle or "").status_code == 200
    assert texts(ask(url, "ReceiveMessage"), "Body") == []
    shown = ask(broker.http_url, "GetQueueAttributes", QueueUrl=url, AttributeName__1="QueueArn")
    assert texts(shown, "Value") == ["arn:aws:sqs:us-east-1:000000000000:old"]
    ask(url, "DeleteQueue")


def test_empty_result_is_an_empty_element(queue: str) -> None:
    assert "<ReceiveMessageResult/>" in ask(queue, "ReceiveMessage").text


def test_batches_have_a_result_for_each_entry(queue: str, sqs: Any) -> None:
    entries = {
        f"SendMessageBatchRequestEntry__{number}__{name}": value
        for number, body in enumerate(("x", "", "y"), 1)
        for name, value in (("Id", f"e{number}"), ("MessageBody", body))
    }
    answer = ask(queue, "SendMessageBatch", **entries)
    assert texts(answer, "Id") == ["e1", "e3", "e2"]
    assert texts(answer, "Code") == ["MissingParameter"]
    assert bodies(receive(sqs, queue)) == ["x", "y"]


def test_url_may_carry_the_request(queue: str, sqs: Any) -> None:
    answer = get(queue, {"Action": "SendMessage", "MessageBody": "from a URL"}, timeout=60)
    assert answer.status_code == 200
    assert bodies(receive(sqs, queue)) == ["from a URL"]


@pytest.mark.parametrize(
    ("action", "code", "status"),
    [
        ("GetQueueUrl", "AWS.SimpleQueueService.NonExistentQueue", 400),
        ("Nothing", "InvalidAction", 400),
        ("AddPermission", "AWS.SimpleQueueService.NonExistentQueue", 400),
    ],
)
def test_errors_have_the_codes_of_the_protocol(broker: Broker, action: str, code: str, status: int) -> None:
    members = {"QueueName": "none", "QueueUrl": "none", "Label": "a", "AWSAccountId__1": "1", "ActionName__1": "*"}
    answer = ask(broker.http_url, action, **members)
    assert (answer.status_code, texts(answer, "Code"), texts(answer, "Type")) == (status, [code], ["Sender"])
    assert texts(answer, "RequestId") == [answer.headers["x-amzn-RequestId"]]


def test_url_of_a_queue_begins_with_the_host_of_the_request(broker: Broker, queue: str) -> None:
    name = urlsplit(queue).path.rpartition("/")[2]
    host = {"Host": "queues.example:9000"}
    answer = get(broker.http_url, {"Action": "GetQueueUrl", "QueueName": name}, headers=host, timeout=60)
    assert texts(answer, "QueueUrl") == [f"http://queues.example:9000/000000000000/{name}"]
