"""Messages over SQS, on a clock that stands still: sent, received, made visible again, deleted, dead."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from conveyor.testing import Broker
from tests.clients.rest_client import Rest
from tests.clients.sqs.conftest import connect
from tests.clients.sqs.sqs_requests import arn, attribute, bodies, receive, refusal_of

ALL: dict[str, Any] = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def test_message_is_received_as_it_was_sent(sqs: Any, queue: str) -> None:
    attributes = {
        "text": {"DataType": "String", "StringValue": "é"},
        "count": {"DataType": "Number.int", "StringValue": "12"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
    sent = sqs.send_message(
        QueueUrl=queue, MessageBody="héllo\n", MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    [message] = receive(sqs, queue, **ALL)
    assert message["MessageId"] == sent["MessageId"]
    assert message["Body"] == "héllo\n"
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    system = message["Attributes"]
    assert (system["ApproximateReceiveCount"], system["AWSTraceHeader"]) == ("1", "Root=1")
    assert system["SenderId"] == "000000000000"
    assert system["SentTimestamp"] == system["ApproximateFirstReceiveTimestamp"]
    assert "SequenceNumber" not in sent.keys() | system.keys()


@pytest.mark.parametrize(
    ("names", "shown"),
    [([], None), (["a.b"], {"a.b"}), (["a.*"], {"a.b", "a.c"}), (["*"], {"a.b", "a.c", "b"}), (["x"], None)],
)
def test_attributes_are_shown_by_name(sqs: Any, queue: str, names: list[str], shown: set[str] | None) -> None:
    values = {name: {"DataType": "String", "StringValue": name} for name in ("a.b", "a.c", "b")}
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=values)
    [message] = receive(sqs, queue, MessageAttributeNames=names)
    assert (message.get("MessageAttributes") or {}).keys() == (shown or set())
    assert ("MD5OfMessageAttributes" in message) is bool(shown)
    assert "Attributes" not in message


def test_other_clients_see_attributes_as_headers(sqs: Any, queue: str, broker: Broker) -> None:
    values = {"n": {"DataType": "Number", "StringValue": "1"}, "s": {"DataType": "String", "StringValue": "t"}}
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=values)
    rest = Rest(broker)
    [message] = rest.lease(name_of(queue), visibility="0s")
    assert message["headers"] == {"n": "1", "s": "t", "sqs.types": '{"n":"Number"}'}
    assert message["payload"] == "x"
    rest.close()


def test_messages_of_other_clients_are_received(sqs: Any, queue: str, broker: Broker) -> None:
    rest = Rest(broker)
    path = f"/topics/{name_of(queue)}/messages"
    rest.post(path, b"\xff", header="kind:a", tag="t")
    rest.post(path, b"\x01")
    first, second = receive(sqs, queue, **ALL)
    encoded = {"DataType": "String", "StringValue": "base64"}
    assert (first["Body"], second["Body"]) == ("/w==", "AQ==")
    assert first["MessageAttributes"] == {
        "kind": {"DataType": "String", "StringValue": "a"},
        "conveyor.encoding": encoded,
    }
    assert second["MessageAttributes"] == {"conveyor.encoding": encoded}
    rest.close()


def test_attributes_may_be_those_of_the_broker(sqs: Any, queue: str) -> None:
    """A message attribute `conveyor-priority` is what the header is for other clients."""
    for priority in ("1", "9"):
        values = {"conveyor-priority": {"DataType": "Number", "StringValue": priority}}
        sqs.send_message(QueueUrl=queue, MessageBody=priority, MessageAttributes=values)
    messages = receive(sqs, queue, **ALL)
    assert bodies(messages) == ["9", "1"]
    assert messages[0]["MessageAttributes"]["conveyor-priority"]["StringValue"] == "9"
    wrong = {"conveyor-priority": {"DataType": "Number", "StringValue": "10"}}
    refused = refusal_of(sqs.send_message, QueueUrl=queue, MessageBody="x", MessageAttributes=wrong)
    assert refused.code == "InvalidParameterValue"


def test_message_is_visible_again_after_its_timeout(sqs: Any, broker: Broker, make_queue: Callable[..., str]) -> None:
    url = make_queue(VisibilityTimeout="43200")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert bodies(receive(sqs, url)) == ["x"]
    broker.clock.advance(seconds=43_199)
    assert receive(sqs, url) == []
    broker.clock.advance(seconds=1)
    [message] = receive(sqs, url, VisibilityTimeout=10, **ALL)
    assert message["Attributes"]["ApproximateReceiveCount"] == "2"
    broker.clock.advance(seconds=10)
    assert bodies(receive(sqs, url)) == ["x"]


def test_visibility_is_changed(sqs: Any, broker: Broker, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=3600)
    broker.clock.advance(seconds=3599)
    assert receive(sqs, queue) == []
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert bodies(receive(sqs, queue)) == ["x"]


def test_every_receipt_handle_changes_the_visibility(sqs: Any, broker: Broker, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [first] = receive(sqs, queue, VisibilityTimeout=10)
    handle = first["ReceiptHandle"]
    broker.clock.advance(seconds=10)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=60)
    [second] = receive(sqs, queue, VisibilityTimeout=10)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=60)
    broker.clock.advance(seconds=59)
    assert receive(sqs, queue) == []
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    [last] = receive(sqs, queue)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=last["ReceiptHandle"])
    refused = refusal_of(
        sqs.change_message_visibility, QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=1
    )
    assert refused.code == "InvalidParameterValue"
    assert "Message does not exist or is not available for visibility timeout change." in refused.message


def test_delay_is_the_queues_or_the_messages(sqs: Any, broker: Broker, make_queue: Callable[..., str]) -> None:
    url = make_queue(DelaySeconds="900")
    sqs.send_message(QueueUrl=url, MessageBody="queue's")
    sqs.send_message(QueueUrl=url, MessageBody="own", DelaySeconds=10)
    sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    assert bodies(receive(sqs, url)) == ["now"]
    assert attribute(sqs, url, "ApproximateNumberOfMessagesDelayed") == "2"
    broker.clock.advance(seconds=10)
    assert bodies(receive(sqs, url)) == ["own"]
    broker.clock.advance(seconds=890)
    assert "queue's" in bodies(receive(sqs, url))
    refused = refusal_of(sqs.send_message, QueueUrl=url, MessageBody="x", DelaySeconds=901)
    assert refused.code == "InvalidParameterValue"


def test_deleted_message_does_not_return(sqs: Any, broker: Broker, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue)
    for _ in range(2):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    broker.clock.advance(seconds=3600)
    assert receive(sqs, queue) == []


def test_last_receipt_handle_deletes_also_after_the_timeout(sqs: Any, broker: Broker, queue: str) -> None:
    for body in ("late", "older"):
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    late, older = receive(sqs, queue, VisibilityTimeout=10)
    broker.clock.advance(seconds=10)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=late["ReceiptHandle"])
    assert bodies(receive(sqs, queue, VisibilityTimeout=10)) == ["older"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=older["ReceiptHandle"])
    broker.clock.advance(seconds=10)
    assert bodies(receive(sqs, queue)) == ["older"]


def test_first_receive_is_remembered(sqs: Any, broker: Broker, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    broker.clock.advance(seconds=5)
    [message] = receive(sqs, queue, VisibilityTimeout=10, **ALL)
    first = int(message["Attributes"]["ApproximateFirstReceiveTimestamp"])
    assert first == int(message["Attributes"]["SentTimestamp"]) + 5000
    broker.clock.advance(seconds=10)
    [message] = receive(sqs, queue, **ALL)
    assert int(message["Attributes"]["ApproximateFirstReceiveTimestamp"]) == first


def test_receipt_handles_are_of_their_queue(sqs: Any, queue: str, make_queue: Callable[..., str]) -> None:
    other = make_queue()
    sqs.send_message(QueueUrl=other, MessageBody="x")
    [message] = receive(sqs, other)
    for handle in (message["ReceiptHandle"], "none", "é"):
        refused = refusal_of(sqs.delete_message, QueueUrl=queue, ReceiptHandle=handle)
        text = f'The input receipt handle "{handle}" is not a valid receipt handle.'
        assert (refused.code, refused.message) == ("ReceiptHandleIsInvalid", text)


def test_batches_have_a_result_for_each_entry(sqs: Any, queue: str) -> None:
    entries = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(9)]
    entries.append({"Id": "bad", "MessageBody": "\x01"})
    sent = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [entry["Id"] for entry in sent["Successful"]] == [entry["Id"] for entry in entries[:-1]]
    [failed] = sent["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "InvalidMessageContents", True)
    messages = receive(sqs, queue)
    assert bodies(messages) == [f"m{number}" for number in range(9)]
    handles = [{"Id": f"h{number}", "ReceiptHandle": each["ReceiptHandle"]} for number, each in enumerate(messages)]
    changes = [{**entry, "VisibilityTimeout": index % 3} for index, entry in enumerate(handles)]
    changes.append({"Id": "h9", "ReceiptHandle": "none", "VisibilityTimeout": 1})
    changed = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=changes)
    assert [entry["Id"] for entry in changed["Successful"]] == [entry["Id"] for entry in handles]
    assert [entry["Code"] for entry in changed["Failed"]] == ["ReceiptHandleIsInvalid"]
    wrong = {"Id": "wrong", "ReceiptHandle": "none"}
    deleted = sqs.delete_message_batch(QueueUrl=queue, Entries=[handles[1], wrong, handles[2]])
    assert [entry["Id"] for entry in deleted["Successful"]] == ["h1", "h2"]
    assert [entry["Id"] for entry in deleted["Failed"]] == ["wrong"]


def test_large_message_fails_alone(sqs: Any, make_queue: Callable[..., str]) -> None:
    url = make_queue(MaximumMessageSize="1024")
    entries = [{"Id": f"s{size}", "MessageBody": "a" * size} for size in (1024, 1025)]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in sent["Successful"]] == ["s1024"]
    reason = "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes."
    failed = {"Id": "s1025", "Code": "InvalidParameterValue", "Message": reason, "SenderFault": True}
    assert sent["Failed"] == [failed]


def test_trace_may_be_a_header_of_the_request(broker: Broker, queue: str) -> None:
    def add_header(request: Any, **_: Any) -> None:
        request.headers["X-Amzn-Trace-Id"] = "Root=1"

    client = connect(broker)
    client.meta.events.register("before-send.sqs.SendMessage", add_header)
    client.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(client, queue, **ALL)
    client.close()
    assert message["Attributes"]["AWSTraceHeader"] == "Root=1"


def test_batches_are_checked(sqs: Any, queue: str) -> None:
    def code(*ids: str, body: str = "x") -> str:
        entries = [{"Id": each, "MessageBody": body} for each in ids]
        return refusal_of(sqs.send_message_batch, QueueUrl=queue, Entries=entries).code

    assert code() == "AWS.SimpleQueueService.EmptyBatchRequest"
    assert code(*map(str, range(11))) == "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"
    assert code("a", "a") == "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"
    assert code("a b") == "AWS.SimpleQueueService.InvalidBatchEntryId"
    assert code("a", "b", body="x" * (1 << 20)) == "AWS.SimpleQueueService.BatchRequestTooLong"


def test_largest_message_is_a_mebibyte(sqs: Any, queue: str) -> None:
    body = "é" * (1 << 19)
    sqs.send_message(QueueUrl=queue, MessageBody=body)
    assert bodies(receive(sqs, queue)) == [body]
    refused = refusal_of(sqs.send_message, QueueUrl=queue, MessageBody=f"{body}x")
    reason = "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes."
    assert refused == ("InvalidParameterValue", reason, 400)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"MaxNumberOfMessages": 0}, "MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."),
        ({"MaxNumberOfMessages": 11}, "MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."),
        ({"WaitTimeSeconds": 21}, "WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."),
        ({"VisibilityTimeout": -1}, "VisibilityTimeout is invalid. Reason: Must be between 0 and 43200, if provided."),
    ],
)
def test_receive_is_checked(sqs: Any, queue: str, members: dict[str, int], text: str) -> None:
    refused = refusal_of(sqs.receive_message, QueueUrl=queue, **members)
    [value] = members.values()
    assert refused == ("InvalidParameterValue", f"Value {value} for parameter {text}", 400)


def test_unknown_system_attribute_is_refused(sqs: Any, queue: str) -> None:
    assert refusal_of(sqs.receive_message, QueueUrl=queue, AttributeNames=["Size"]).code == "InvalidAttributeName"


def test_waiting_client_gets_a_message_at_once(sqs: Any, broker: Broker, queue: str) -> None:
    found: list[str] = []
    waiting = connect(broker)
    thread = threading.Thread(target=lambda: found.extend(bodies(receive(waiting, queue, WaitTimeSeconds=20))))
    thread.start()
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    thread.join(60)
    waiting.close()
    assert found == ["x"]


def test_message_becomes_a_dead_letter(sqs: Any, broker: Broker, make_queue: Callable[..., str]) -> None:
    dead = make_queue()
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, dead), "maxReceiveCount": 2})
    url = make_queue(RedrivePolicy=policy, VisibilityTimeout="60")
    values = {"n": {"DataType": "Number", "StringValue": "1"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=values)
    for _ in range(2):
        assert bodies(receive(sqs, url)) == ["x"]
        broker.clock.advance(seconds=60)
    assert receive(sqs, url) == []
    [message] = receive(sqs, dead, WaitTimeSeconds=20, **ALL)
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "x")
    assert message["MessageAttributes"] == values
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == arn(sqs, url)
    assert message["Attributes"]["ApproximateReceiveCount"] == "3"
