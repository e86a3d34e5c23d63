"""Requests in both protocols: the same members, and what a hostile client sends.

tests/vectors/sqs/requests.json has the requests as botocore writes them, by SQS's service model of each protocol.
"""

import json
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from conveyor.http_api.sqs.protocols.aws_json import read_json
from conveyor.http_api.sqs.protocols.aws_query import read_query
from conveyor.http_api.sqs.protocols.message_operations import (
    ReceiveMessageRequest,
    SendMessageBatchRequest,
    SendMessageRequest,
)
from conveyor.http_api.sqs.protocols.queue_operations import (
    GetQueueAttributesRequest,
    ListQueuesRequest,
    TagQueueRequest,
)
from conveyor.http_api.sqs.protocols.sqs_operation import OPERATIONS
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "sqs" / "requests.json").read_text())


def refusal_of_form(form: str, queue_url: str | None = None) -> SqsError:
    with pytest.raises(SqsError) as caught:
        read_query(form.encode(), queue_url)
    return caught.value


def refusal_of_json(operation: str, body: bytes) -> SqsError:
    with pytest.raises(SqsError) as caught:
        read_json(f"AmazonSQS.{operation}", body)
    return caught.value


def test_vectors_have_every_operation() -> None:
    assert {vector["operation"] for vector in VECTORS} == set(OPERATIONS)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["operation"])
def test_both_protocols_read_the_same_request(vector: dict[str, str]) -> None:
    from_json = read_json(f"AmazonSQS.{vector['operation']}", vector["json"].encode())
    assert read_query(vector["form"].encode(), None) == from_json
    assert from_json.operation is OPERATIONS[vector["operation"]]


def test_members_of_a_message() -> None:
    (vector,) = (vector for vector in VECTORS if vector["operation"] == "SendMessage")
    request = read_query(vector["form"].encode(), None).request
    assert isinstance(request, SendMessageRequest)
    assert request.message_body == "two\r\nbooks é 📖 &=+%"
    assert request.delay_seconds == 5
    assert request.message_attributes is not None
    assert request.message_attributes["bin"].binary_value == b"\x00\x01\xff"
    assert request.message_attributes["text"].string_value == "häß & <b>"
    assert request.message_group_id == "g"


def test_json_member_that_is_null_is_absent_and_unknown_ones_are_ignored() -> None:
    body = b'{"QueueUrl": "u", "MaxNumberOfMessages": null, "Other": {"a": [1]}}'
    assert read_json("AmazonSQS.ReceiveMessage", body).request == ReceiveMessageRequest(queue_url="u")


def test_json_body_may_be_empty() -> None:
    assert read_json("AmazonSQS.ListQueues", b"").operation.name == "ListQueues"


def test_form_to_the_url_of_a_queue() -> None:
    form = b"Action=GetQueueAttributes&AttributeName=All"
    request = read_query(form, "http://x/0/q").request
    assert request == GetQueueAttributesRequest(queue_url="http://x/0/q", attribute_names=["All"])
    other = read_query(form + b"&QueueUrl=other", "http://x/0/q").request
    assert other == GetQueueAttributesRequest(queue_url="other", attribute_names=["All"])


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues", "Unknown"])
def test_url_of_a_queue_takes_operations_on_it_only(action: str) -> None:
    error = refusal_of_form(f"Action={action}&QueueName=q", "http://x/0/q")
    assert error.sqs_kind is SqsErrorKind.INVALID_ACTION
    assert error.message == f"The action {action} is not valid for this endpoint."


@pytest.mark.parametrize("form", ["", "QueueUrl=u", "&&&", "=x"])
def test_form_without_an_action(form: str) -> None:
    assert refusal_of_form(form).sqs_kind is SqsErrorKind.UNKNOWN_OPERATION


@pytest.mark.parametrize("name", ["Tag", "Tags"])
def test_tags_by_either_name(name: str) -> None:
    form = f"Action=TagQueue&QueueUrl=u&{name}.1.Key=a&{name}.1.Value=1&{name}.2.Key=b"
    assert read_query(form.encode(), None).request == TagQueueRequest(queue_url="u", tags={"a": "1", "b": ""})


def test_map_with_one_item_needs_no_number() -> None:
    form = b"Action=TagQueue&QueueUrl=u&Tag.Key=a&Tag.Value=1"
    assert read_query(form, None).request == TagQueueRequest(queue_url="u", tags={"a": "1"})


def test_numbers_in_names_only_order_the_items() -> None:
    form = "Action=GetQueueAttributes&QueueUrl=u&AttributeName.1000000000=c&AttributeName.10=b&AttributeName.9=a"
    request = read_query(form.encode(), None).request
    assert request == GetQueueAttributesRequest(queue_url="u", attribute_names=["a", "b", "c"])


@pytest.mark.parametrize("number", ["99999999999", "-1", "x", "1e3", "%D9%A1", "", " 1", "1_0"])
def test_illegal_numbers_in_names_are_no_items(number: str) -> None:
    form = f"Action=GetQueueAttributes&QueueUrl=u&AttributeName.{number}=c"
    assert refusal_of_form(form).sqs_kind is SqsErrorKind.MALFORMED_INPUT


@pytest.mark.parametrize(
    "form",
    [
        "Action=ListQueues&Action=ListQueues",
        "Action=ListQueues&MaxResults=1&MaxResults=1",
        "Action.1=ListQueues",
        "Action=ListQueues&QueueNamePrefix.1=x",
        "Action=TagQueue&QueueUrl=u&Tag.1=x",
        "Action=TagQueue&QueueUrl=u&Tag.1.Key.1=x",
        "Action=TagQueue&QueueUrl=u&Tag.1=x&Tag.1.Key=x",
        "Action=TagQueue&QueueUrl=u&Tag.1.Key=x&Tag.1=x",
        "Action=TagQueue&QueueUrl=u&Tag.1.Key=x&Tag.1.Value.2=x",
        "Action=SendMessageBatch&QueueUrl=u&SendMessageBatchRequestEntry.1=x",
        "Action=SendMessage&QueueUrl=u&MessageBody=x&MessageAttribute.1.Name=a&MessageAttribute.1.Value=x",
        "Action=SendMessage&QueueUrl=u&MessageBody=%FF",
        "Action=SendMessage&QueueUrl=u&MessageBody=\u00ff",
        "Action=SendMessage&QueueUrl=u&MessageBody=x&MessageAttribute.1.Name=a&MessageAttribute.1.Value.BinaryValue=!",
        "Action=ListQueues&" + "&".join(f"a{number}=" for number in range(2_000)),
        "Action=ListQueues&" + "a." * 10_000 + "a=1",
    ],
)
def test_malformed_forms(form: str) -> None:
    error = refusal_of_form(form)
    assert error.sqs_kind in {SqsErrorKind.MALFORMED_INPUT, SqsErrorKind.INVALID_ACTION}


@pytest.mark.parametrize("value", ["x", "", "1.0", "NaN", "1e3", "null", "9" * 5_000, "+1", "%D9%A1"])
def test_number_of_a_form_is_an_integer(value: str) -> None:
    error = refusal_of_form(f"Action=ListQueues&MaxResults={value}")
    assert error.sqs_kind is SqsErrorKind.INVALID_PARAMETER_VALUE
    assert len(error.message) <= 2_000


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 10**17])
def test_numbers_have_32_bits(value: int) -> None:
    assert refusal_of_form(f"Action=ListQueues&MaxResults={value}").sqs_kind is SqsErrorKind.MALFORMED_INPUT
    assert refusal_of_json("ListQueues", b'{"MaxResults": %d}' % value).sqs_kind is SqsErrorKind.MALFORMED_INPUT


def test_map_of_a_form_has_a_name_once() -> None:
    error = refusal_of_form("Action=TagQueue&QueueUrl=u&Tag.1.Key=a&Tag.1.Value=1&Tag.2.Key=a&Tag.2.Value=2")
    assert error.sqs_kind is SqsErrorKind.INVALID_PARAMETER_VALUE


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b"{",
        b'{"QueueUrl": "u", "MessageBody": 1}',
        b'{"QueueUrl": "u", "MessageBody": "x", "DelaySeconds": NaN}',
        b'{"QueueUrl": "u", "MessageBody": "x", "DelaySeconds": 1e400}',
        b'{"QueueUrl": "u", "MessageBody": "x", "DelaySeconds": "5"}',
        b'{"QueueUrl": "u", "MessageBody": "x", "DelaySeconds": ' + b"9" * 5_000 + b"}",
        b'{"QueueUrl": "u", "MessageBody": "\\ud800"}',
        b'{"QueueUrl": "u", "MessageBody": "\xff"}',
        b'{"QueueUrl": "u", "MessageBody": "x", "MessageAttributes": {"a": "x"}}',
        b'{"QueueUrl": "u", "MessageBody": "x", "MessageAttributes": {"a": {"BinaryValue": "!"}}}',
        b'{"QueueUrl": "u", "MessageBody": "x", "Other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"QueueUrl": "u", "MessageBody": "x"} x',
    ],
)
def test_malformed_json(body: bytes) -> None:
    assert refusal_of_json("SendMessage", body).sqs_kind is SqsErrorKind.MALFORMED_INPUT


@pytest.mark.parametrize("target", ["", "SendMessage", "AmazonSQS.", "AmazonSQS.sendMessage", "DynamoDB.SendMessage"])
def test_unknown_target(target: str) -> None:
    with pytest.raises(SqsError) as caught:
        read_json(target, b"{}")
    assert caught.value.sqs_kind is SqsErrorKind.UNKNOWN_OPERATION


def test_missing_member_is_named() -> None:
    for error in (refusal_of_form("Action=SendMessage&QueueUrl=u"), refusal_of_json("SendMessage", b'{"QueueUrl":""}')):
        assert error.sqs_kind is SqsErrorKind.MISSING_PARAMETER
        assert error.message == "The request must contain the parameter MessageBody."


def test_missing_member_of_an_entry_is_named_as_in_a_form() -> None:
    form = "Action=SendMessageBatch&QueueUrl=u&SendMessageBatchRequestEntry.1.MessageBody=x"
    body = b'{"QueueUrl": "u", "Entries": [{"MessageBody": "x"}]}'
    for error in (refusal_of_form(form), refusal_of_json("SendMessageBatch", body)):
        assert error.sqs_kind is SqsErrorKind.MISSING_PARAMETER
        assert error.message == "The request must contain the parameter SendMessageBatchRequestEntry.1.Id."


def test_batch_without_entries() -> None:
    for error in (
        refusal_of_form("Action=DeleteMessageBatch&QueueUrl=u"),
        refusal_of_json("DeleteMessageBatch", b'{"QueueUrl":"u"}'),
    ):
        assert error.sqs_kind is SqsErrorKind.EMPTY_BATCH_REQUEST
        assert error.message == "There should be at least one DeleteMessageBatchRequestEntry in the request."


def test_empty_list_of_a_form() -> None:
    request = read_query(b"Action=SendMessageBatch&QueueUrl=u&SendMessageBatchRequestEntry=", None).request
    assert request == SendMessageBatchRequest(queue_url="u", entries=[])


def test_large_form_is_read_without_a_step_for_each_byte() -> None:
    form = b"Action=SendMessage&QueueUrl=u&MessageBody=" + b"%2B" * 1_000_000
    request = read_query(form, None).request
    assert isinstance(request, SendMessageRequest)
    assert request.message_body == "+" * 1_000_000


@pytest.mark.parametrize("value", ["%", "%2", "%%20", "%G1", "a%0", "a\nb", "a\x00b", "a\x7fb"])
def test_escapes_of_a_form_are_complete(value: str) -> None:
    assert refusal_of_form(f"Action=ListQueues&QueueNamePrefix={value}").sqs_kind is SqsErrorKind.MALFORMED_INPUT


@pytest.mark.parametrize("text", ["", "a+b", "a%b", "a=b&c", "=3D", "a=\r\nb", " \t ", "ünï", "_", ".", "\x00"])
def test_values_of_a_form_are_decoded(text: str) -> None:
    for form in (urlencode({"QueueNamePrefix": text}), urlencode({"QueueNamePrefix": text}, quote_via=quote)):
        request = read_query(b"Action=ListQueues&" + form.encode(), None).request
        assert request == ListQueuesRequest(queue_name_prefix=text)
