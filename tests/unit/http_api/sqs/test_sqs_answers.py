"""Answers in both protocols."""

from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec import Struct, json

from conveyor.http_api.sqs.protocols.aws_json import AwsJson
from conveyor.http_api.sqs.protocols.aws_query import AwsQuery
from conveyor.http_api.sqs.protocols.message_operations import (
    DeleteMessageBatchResult,
    DeleteMessageBatchResultEntry,
    ReceivedMessage,
    ReceiveMessageResult,
    SendMessageResult,
)
from conveyor.http_api.sqs.protocols.move_task_operations import CancelMessageMoveTaskResult
from conveyor.http_api.sqs.protocols.queue_operations import (
    GetQueueAttributesResult,
    ListDeadLetterSourceQueuesResult,
    ListQueuesResult,
    ListQueueTagsResult,
)
from conveyor.http_api.sqs.protocols.sqs_members import BatchResultErrorEntry, MessageAttributeValue
from conveyor.http_api.sqs.protocols.sqs_operation import OPERATIONS

NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
MESSAGE = ReceivedMessage(
    message_id="id",
    receipt_handle="handle",
    md5_of_body="digest",
    body='a\r\n\t"<é📖>&amp;',
    attributes={"SentTimestamp": "1"},
    md5_of_attributes="attributes",
    message_attributes={
        "b": MessageAttributeValue(data_type="Binary", binary_value=b"\x00\xff"),
        "s": MessageAttributeValue(data_type="String", string_value="x"),
    },
)


def as_json(operation: str, result: Struct | None) -> Any:
    answer = AwsJson(has_query_statuses=False).write_result(OPERATIONS[operation], result, "r-1")
    assert answer.status == 200
    assert answer.headers == {"x-amzn-RequestId": "r-1"}
    return json.decode(answer.body) if answer.body else None


def as_xml(operation: str, result: Struct | None) -> str:
    """Return the answer without what is the same in all of them."""
    answer = AwsQuery().write_result(OPERATIONS[operation], result, "r-1")
    text = answer.body.decode()
    ET.fromstring(text)
    start = f'<?xml version="1.0"?><{operation}Response xmlns="{NAMESPACE}">'
    end = f"<ResponseMetadata><RequestId>r-1</RequestId></ResponseMetadata></{operation}Response>"
    assert text.startswith(start)
    assert text.endswith(end)
    return text[len(start) : -len(end)]


@pytest.mark.parametrize("operation", [name for name, known in OPERATIONS.items() if known.result is None])
def test_answer_without_members(operation: str) -> None:
    assert as_json(operation, None) is None
    assert as_xml(operation, None) == ""


def test_answer_leaves_out_what_is_unknown() -> None:
    assert as_json("ReceiveMessage", ReceiveMessageResult()) == {}
    assert as_xml("ReceiveMessage", ReceiveMessageResult()) == "<ReceiveMessageResult/>"


def test_received_message() -> None:
    assert as_json("ReceiveMessage", ReceiveMessageResult(messages=[MESSAGE])) == {
        "Messages": [
            {
                "MessageId": "id",
                "ReceiptHandle": "handle",
                "MD5OfBody": "digest",
                "Body": 'a\r\n\t"<é📖>&amp;',
                "Attributes": {"SentTimestamp": "1"},
                "MD5OfMessageAttributes": "attributes",
                "MessageAttributes": {
                    "b": {"DataType": "Binary", "BinaryValue": "AP8="},
                    "s": {"DataType": "String", "StringValue": "x"},
                },
            }
        ]
    }
    assert as_xml("ReceiveMessage", ReceiveMessageResult(messages=[MESSAGE])) == (
        "<ReceiveMessageResult><Message><MessageId>id</MessageId><ReceiptHandle>handle</ReceiptHandle>"
        "<MD5OfBody>digest</MD5OfBody><Body>a&#xD;\n\t&quot;&lt;é📖&gt;&amp;amp;</Body>"
        "<Attribute><Name>SentTimestamp</Name><Value>1</Value></Attribute>"
        "<MD5OfMessageAttributes>attributes</MD5OfMessageAttributes>"
        "<MessageAttribute><Name>b</Name><Value><DataType>Binary</DataType><BinaryValue>AP8=</BinaryValue></Value>"
        "</MessageAttribute><MessageAttribute><Name>s</Name><Value><DataType>String</DataType>"
        "<StringValue>x</StringValue></Value></MessageAttribute></Message></ReceiveMessageResult>"
    )


@pytest.mark.parametrize("text", ["a\x00b", "a\x1fb", "a\ufffeb", "a\uffffb"])
def test_characters_that_xml_lacks_are_replaced(text: str) -> None:
    written = as_xml("ListQueueTags", ListQueueTagsResult(tags={"k": text}))
    assert "<Value>a\ufffdb</Value>" in written


def test_line_ends_survive_a_parser() -> None:
    written = as_xml("GetQueueAttributes", GetQueueAttributesResult(attributes={"k": "a\r\nb\rc"}))
    assert ET.fromstring(written).findtext("Attribute/Value") == "a\r\nb\rc"


def test_lists_are_repeated_elements() -> None:
    page = ListQueuesResult(queue_urls=["a", "b"], next_token="t")
    assert as_json("ListQueues", page) == {"QueueUrls": ["a", "b"], "NextToken": "t"}
    assert as_xml("ListQueues", page) == (
        "<ListQueuesResult><QueueUrl>a</QueueUrl><QueueUrl>b</QueueUrl><NextToken>t</NextToken></ListQueuesResult>"
    )


def test_list_of_source_queues_is_written_when_empty() -> None:
    page = ListDeadLetterSourceQueuesResult(queue_urls=[])
    assert as_json("ListDeadLetterSourceQueues", page) == {"queueUrls": []}


def test_entries_of_a_batch() -> None:
    result = DeleteMessageBatchResult(
        successful=[DeleteMessageBatchResultEntry(id="a")],
        failed=[BatchResultErrorEntry(id="b", sender_fault=True, code="ReceiptHandleIsInvalid", message="no")],
    )
    assert as_json("DeleteMessageBatch", result) == {
        "Successful": [{"Id": "a"}],
        "Failed": [{"Id": "b", "SenderFault": True, "Code": "ReceiptHandleIsInvalid", "Message": "no"}],
    }
    assert as_xml("DeleteMessageBatch", result) == (
        "<DeleteMessageBatchResult><DeleteMessageBatchResultEntry><Id>a</Id></DeleteMessageBatchResultEntry>"
        "<BatchResultErrorEntry><Id>b</Id><SenderFault>true</SenderFault><Code>ReceiptHandleIsInvalid</Code>"
        "<Message>no</Message></BatchResultErrorEntry></DeleteMessageBatchResult>"
    )


def test_names_of_digests() -> None:
    sent = SendMessageResult(message_id="i", md5_of_body="b", md5_of_attributes="a", md5_of_system_attributes="s")
    assert as_json("SendMessage", sent) == {
        "MessageId": "i",
        "MD5OfMessageBody": "b",
        "MD5OfMessageAttributes": "a",
        "MD5OfMessageSystemAttributes": "s",
    }


def test_number_of_moved_messages() -> None:
    result = CancelMessageMoveTaskResult(approximate_number_of_messages_moved=0)
    assert as_json("CancelMessageMoveTask", result) == {"ApproximateNumberOfMessagesMoved": 0}
    assert "<ApproximateNumberOfMessagesMoved>0<" in as_xml("CancelMessageMoveTask", result)
