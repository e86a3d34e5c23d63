"""Message move tasks over SQS: dead letters go back to their queues, or to another one, at a rate, until cancelled."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from conveyor.testing import Broker
from tests.clients.sqs.sqs_requests import arn, attribute, bodies, receive, refusal_of

ALL: dict[str, Any] = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
COUNT = 25


@pytest.fixture
def dead(make_queue: Callable[..., str]) -> str:
    """The URL of the dead-letter queue of `source`."""
    return make_queue()


@pytest.fixture
def source(sqs: Any, dead: str, make_queue: Callable[..., str]) -> str:
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, dead), "maxReceiveCount": 1})
    return make_queue(RedrivePolicy=policy, VisibilityTimeout="1")


def die(sqs: Any, broker: Broker, source: str, dead: str) -> None:
    """Make dead letters, which stay in their queue."""
    values = {"n": {"DataType": "Number", "StringValue": "1"}}
    for number in range(COUNT):
        sqs.send_message(QueueUrl=source, MessageBody=f"m{number:02}", MessageAttributes=values)
    while receive(sqs, source):
        broker.clock.advance(seconds=0)
    broker.clock.advance(seconds=1)
    assert attribute(sqs, dead, "ApproximateNumberOfMessages") == str(COUNT)


def latest(sqs: Any, dead: str) -> dict[str, Any]:
    [task] = sqs.list_message_move_tasks(SourceArn=arn(sqs, dead))["Results"]
    found: dict[str, Any] = task
    return found


def ended(sqs: Any, broker: Broker, dead: str) -> dict[str, Any]:
    """Return the latest task, once it has ended."""
    for _ in range(100):
        task = latest(sqs, dead)
        if task["Status"] not in ("RUNNING", "CANCELLING"):
            break
        broker.clock.advance(ms=100)
    return task


def all_messages(sqs: Any, url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while messages := receive(sqs, url, VisibilityTimeout=3600, **ALL):
        found += messages
    return found


def test_dead_letters_go_back_to_their_queue(sqs: Any, broker: Broker, source: str, dead: str) -> None:
    die(sqs, broker, source, dead)
    sqs.start_message_move_task(SourceArn=arn(sqs, dead))
    task = ended(sqs, broker, dead)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", COUNT)
    assert task["ApproximateNumberOfMessagesToMove"] == COUNT
    assert not task.keys() & {"TaskHandle", "DestinationArn", "FailureReason"}
    messages = all_messages(sqs, source)
    assert sorted(bodies(messages)) == [f"m{number:02}" for number in range(COUNT)]
    assert messages[0]["MessageAttributes"]["n"] == {"DataType": "Number", "StringValue": "1"}
    assert "DeadLetterQueueSourceArn" not in messages[0]["Attributes"]
    assert all_messages(sqs, dead) == []


def test_task_is_cancelled_at_its_rate(
    sqs: Any, broker: Broker, source: str, dead: str, make_queue: Callable[..., str]
) -> None:
    die(sqs, broker, source, dead)
    other = make_queue()
    started = sqs.start_message_move_task(
        SourceArn=arn(sqs, dead), DestinationArn=arn(sqs, other), MaxNumberOfMessagesPerSecond=5
    )
    again = refusal_of(sqs.start_message_move_task, SourceArn=arn(sqs, dead))
    assert again.message.startswith("There is already a task running.")
    broker.clock.advance(seconds=1)
    task = latest(sqs, dead)
    assert (task["Status"], task["TaskHandle"]) == ("RUNNING", started["TaskHandle"])
    assert (task["DestinationArn"], task["MaxNumberOfMessagesPerSecond"]) == (arn(sqs, other), 5)
    sqs.cancel_message_move_task(TaskHandle=started["TaskHandle"])
    task = ended(sqs, broker, dead)
    assert task["Status"] == "CANCELLED"
    assert 5 <= task["ApproximateNumberOfMessagesMoved"] <= 15
    moved, left = all_messages(sqs, other), all_messages(sqs, dead)
    assert len(moved) == task["ApproximateNumberOfMessagesMoved"]
    assert sorted(bodies(moved) + bodies(left)) == [f"m{number:02}" for number in range(COUNT)]
    refused = refusal_of(sqs.cancel_message_move_task, TaskHandle=started["TaskHandle"])
    assert refused.message == "Only active tasks can be cancelled."


def test_message_without_a_source_fails_the_task(sqs: Any, broker: Broker, source: str, dead: str) -> None:
    sqs.send_message(QueueUrl=dead, MessageBody="from nowhere")
    assert source
    sqs.start_message_move_task(SourceArn=arn(sqs, dead))
    task = ended(sqs, broker, dead)
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")
    assert bodies(all_messages(sqs, dead)) == ["from nowhere"]


def test_wrong_requests_are_refused(sqs: Any, queue: str, source: str, dead: str) -> None:
    own, none = arn(sqs, queue), "arn:aws:sqs:us-east-1:000000000000:none"
    start, cancel = sqs.start_message_move_task, sqs.cancel_message_move_task
    refused = refusal_of(start, SourceArn=own)
    assert refused.message == "Source queue must be configured as a Dead Letter Queue."
    refused = refusal_of(start, SourceArn=none)
    assert refused.code == "ResourceNotFoundException"
    assert refusal_of(start, SourceArn="queue").message.startswith("You must use this format to specify the SourceArn")
    assert refusal_of(start, SourceArn=arn(sqs, dead), DestinationArn=none).code == "ResourceNotFoundException"
    assert refusal_of(start, SourceArn=arn(sqs, dead), DestinationArn=arn(sqs, dead)).code == "InvalidParameterValue"
    limited = refusal_of(start, SourceArn=arn(sqs, dead), MaxNumberOfMessagesPerSecond=501)
    assert limited.code == "InvalidParameterValue"
    assert refusal_of(cancel, TaskHandle="none").message == "Value for parameter TaskHandle is invalid."
    assert sqs.list_message_move_tasks(SourceArn=own).get("Results", []) == []
    assert source
