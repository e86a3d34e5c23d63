"""What tests of SQS ask, and how they look at the answers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import ClientError


class Refusal(NamedTuple):
    """An error as a client of SQS sees it. code: that of the query protocol, which SDKs report."""

    code: str
    message: str
    status: int


def refusal_of(ask: Callable[..., Any], **members: Any) -> Refusal:
    """Return the error of a request."""
    with pytest.raises(ClientError) as raised:
        ask(**members)
    response = raised.value.response
    error = response["Error"]
    return Refusal(error["Code"], error.get("Message", ""), response["ResponseMetadata"]["HTTPStatusCode"])


def receive(sqs: Any, url: str, count: int = 10, **members: Any) -> list[dict[str, Any]]:
    """Return messages that are available now."""
    found: list[dict[str, Any]] = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count, **members).get(
        "Messages", []
    )
    return found


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def attribute(sqs: Any, url: str, name: str) -> str:
    """Return one attribute of a queue."""
    value: str = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name]
    return value


def arn(sqs: Any, url: str) -> str:
    return attribute(sqs, url, "QueueArn")
