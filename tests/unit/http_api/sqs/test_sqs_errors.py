"""The errors of SQS, and those that the errors of the broker become."""

import pytest

from conveyor.http_api.sqs.protocols.aws_json import AwsJson
from conveyor.http_api.sqs.protocols.aws_query import AwsQuery
from conveyor.http_api.sqs.sqs_errors import (
    SQS_ERRORS,
    SqsError,
    SqsErrorKind,
    missing_parameter,
    sqs_kind_of,
    sqs_message_of,
)
from conveyor.kernel.errors import ErrorKind, RequestError


def test_every_kind_of_error_has_codes() -> None:
    assert set(SQS_ERRORS) == set(SqsErrorKind)
    assert len({codes.query_code for codes in SQS_ERRORS.values()}) == len(SQS_ERRORS)
    assert len({codes.json_type for codes in SQS_ERRORS.values()}) == len(SQS_ERRORS)


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_error_of_the_broker_becomes_one_of_sqs(kind: ErrorKind) -> None:
    assert sqs_kind_of(RequestError(kind, "")) in SQS_ERRORS


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ErrorKind.UNKNOWN_TOPIC, SqsErrorKind.QUEUE_DOES_NOT_EXIST),
        (ErrorKind.UNKNOWN_SUBSCRIPTION, SqsErrorKind.QUEUE_DOES_NOT_EXIST),
        (ErrorKind.TOPIC_ALREADY_EXISTS, SqsErrorKind.QUEUE_NAME_EXISTS),
        (ErrorKind.TOPIC_AUTHORIZATION_FAILED, SqsErrorKind.ACCESS_DENIED),
        (ErrorKind.THROTTLING_QUOTA_EXCEEDED, SqsErrorKind.REQUEST_THROTTLED),
        (ErrorKind.POLICY_VIOLATION, SqsErrorKind.UNSUPPORTED_OPERATION),
        (ErrorKind.NOT_LEADER, SqsErrorKind.SERVICE_UNAVAILABLE),
        (ErrorKind.UNKNOWN_SERVER_ERROR, SqsErrorKind.INTERNAL_FAILURE),
    ],
)
def test_error_of_the_broker(kind: ErrorKind, expected: SqsErrorKind) -> None:
    assert sqs_kind_of(RequestError(kind, "")) is expected


def test_missing_queue_has_the_text_of_each_protocol() -> None:
    error = RequestError(ErrorKind.UNKNOWN_TOPIC, "no such topic")
    assert sqs_message_of(error, is_query=False) == "The specified queue does not exist."
    assert sqs_message_of(error, is_query=True) == "The specified queue does not exist for this wsdl version."


def test_error_in_aws_json() -> None:
    answer = AwsJson(has_query_statuses=False).write_error(RequestError(ErrorKind.UNKNOWN_TOPIC, ""), "r-1")
    assert answer.status == 400
    assert answer.content_type == "application/x-amz-json-1.0"
    assert answer.headers == {
        "x-amzn-RequestId": "r-1",
        "x-amzn-query-error": "AWS.SimpleQueueService.NonExistentQueue;Sender",
    }
    assert answer.body == (
        b'{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"The specified queue does not exist."}'
    )


def test_status_of_an_error_in_aws_json_is_that_of_the_query_protocol_if_asked_for() -> None:
    error = SqsError(SqsErrorKind.PURGE_QUEUE_IN_PROGRESS, "wait")
    assert AwsJson(has_query_statuses=False).write_error(error, "r").status == 400
    assert AwsJson(has_query_statuses=True).write_error(error, "r").status == 403
    unavailable = RequestError(ErrorKind.NOT_LEADER, "")
    assert AwsJson(has_query_statuses=False).write_error(unavailable, "r").status == 503


def test_error_in_the_query_protocol() -> None:
    answer = AwsQuery().write_error(missing_parameter('<"a">'), "r-1")
    assert (answer.status, answer.content_type) == (400, "text/xml")
    assert answer.body.decode() == (
        '<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error>'
        "<Type>Sender</Type><Code>MissingParameter</Code>"
        "<Message>The request must contain the parameter &lt;&quot;a&quot;&gt;.</Message><Detail/></Error>"
        "<RequestId>r-1</RequestId></ErrorResponse>"
    )


def test_error_that_quotes_bytes_of_a_header_can_be_written() -> None:
    error = missing_parameter("\udcff")
    assert b"\\\\udcff" in AwsJson(has_query_statuses=False).write_error(error, "r").body
    assert b"\\udcff" in AwsQuery().write_error(error, "r").body
