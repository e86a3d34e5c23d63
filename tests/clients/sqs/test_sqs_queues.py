"""Queues over SQS: created once, found, listed in pages, changed, tagged, purged, deleted. A queue is a topic and a
subscription of one name.
"""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from conveyor.testing import Broker
from tests.clients.rest_client import Rest
from tests.clients.sqs.sqs_requests import arn, attribute, bodies, receive, refusal_of

DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "VisibilityTimeout": "30",
    "SqsManagedSseEnabled": "true",
    "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
}
NO_QUEUE = ("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.", 400)


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def test_queue_has_sqs_defaults(sqs: Any, queue: str) -> None:
    shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert {name: shown[name] for name in DEFAULTS} == DEFAULTS
    assert shown["QueueArn"] == f"arn:aws:sqs:us-east-1:000000000000:{name_of(queue)}"
    assert shown["CreatedTimestamp"] == shown["LastModifiedTimestamp"]
    assert shown.keys() == {*DEFAULTS, "QueueArn", "CreatedTimestamp", "LastModifiedTimestamp"}


def test_url_begins_as_the_client_has_asked(broker: Broker, queue: str) -> None:
    assert queue.startswith(f"{broker.http_url}/000000000000/")


def test_queue_is_created_once(sqs: Any) -> None:
    name = f"once-{uuid4().hex[:8]}"
    attributes = {"VisibilityTimeout": "10", "DelaySeconds": "2"}
    first = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    assert sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"] == first
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == first
    other = {"VisibilityTimeout": "11"}
    refused = refusal_of(sqs.create_queue, QueueName=name, Attributes=other)
    text = "A queue already exists with the same name and a different value for attribute VisibilityTimeout"
    assert refused == ("QueueAlreadyExists", text, 400)


@pytest.mark.parametrize("name", ["", "a" * 81, "with space", "a.b", "a.fifo", "é"])
def test_names_are_limited(sqs: Any, name: str) -> None:
    refused = refusal_of(sqs.create_queue, QueueName=name)
    text = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
    assert refused == ("InvalidParameterValue", text, 400)


WRONG_VALUES = {
    "VisibilityTimeout": "43201",
    "DelaySeconds": "-1",
    "MessageRetentionPeriod": "59",
    "MaximumMessageSize": "1023",
    "ReceiveMessageWaitTimeSeconds": "x",
    "FifoQueue": "no",
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_values_of_attributes_are_checked(sqs: Any, name: str) -> None:
    refused = refusal_of(sqs.create_queue, QueueName="never", Attributes={name: WRONG_VALUES[name]})
    assert refused == ("InvalidAttributeValue", f"Invalid value for the parameter {name}.", 400)


@pytest.mark.parametrize("name", ["Size", "QueueArn", "ContentBasedDeduplication"])
def test_names_of_attributes_are_checked(sqs: Any, name: str) -> None:
    refused = refusal_of(sqs.create_queue, QueueName="never", Attributes={name: "true"})
    assert refused == ("InvalidAttributeName", f"Unknown Attribute {name}.", 400)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"FifoQueue": "false"}, "Unknown Attribute FifoQueue."),
        ({"DeduplicationScope": "queue"}, "You can specify the DeduplicationScope only when FifoQueue is set to true."),
        ({"FifoThroughputLimit": "x"}, "You can specify the FifoThroughputLimit only when FifoQueue is set to true."),
        (
            {"KmsMasterKeyId": "key", "SqsManagedSseEnabled": "true"},
            (
                "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS"
                " SSE."
            ),
        ),
    ],
)
def test_attributes_fit_each_other(sqs: Any, attributes: dict[str, str], reason: str) -> None:
    refused = refusal_of(sqs.create_queue, QueueName="never", Attributes=attributes)
    assert refused == ("InvalidAttributeName", reason, 400)


def test_keys_of_kms_replace_those_of_sqs(sqs: Any, queue: str) -> None:
    def shown() -> dict[str, str]:
        found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        return {name: value for name, value in found.items() if name.startswith(("Kms", "SqsManaged"))}

    given = {"KmsMasterKeyId": "key", "KmsDataKeyReusePeriodSeconds": "300"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=given)
    assert shown() == {**given, "SqsManagedSseEnabled": "false"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"KmsMasterKeyId": "", "SqsManagedSseEnabled": "True"})
    assert shown() == {"SqsManagedSseEnabled": "true"}


def test_attributes_are_changed(sqs: Any, queue: str, broker: Broker) -> None:
    broker.clock.advance(seconds=5)
    given = {"VisibilityTimeout": "1", "MessageRetentionPeriod": "60", "DelaySeconds": "7", "Policy": "{}"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=given)
    shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert {name: shown[name] for name in given} == given
    assert int(shown["LastModifiedTimestamp"]) == int(shown["CreatedTimestamp"]) + 5
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": ""})
    assert "Policy" not in sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert sqs.get_queue_attributes(QueueUrl=queue).get("Attributes") is None


def test_missing_queue_is_refused_by_every_operation(sqs: Any, broker: Broker) -> None:
    url = f"{broker.http_url}/000000000000/none"
    for ask, members in (
        (sqs.get_queue_url, {"QueueName": "none"}),
        (sqs.delete_queue, {"QueueUrl": url}),
        (sqs.purge_queue, {"QueueUrl": url}),
        (sqs.get_queue_attributes, {"QueueUrl": url}),
        (sqs.set_queue_attributes, {"QueueUrl": url, "Attributes": {"DelaySeconds": "1"}}),
        (sqs.list_queue_tags, {"QueueUrl": url}),
        (sqs.send_message, {"QueueUrl": url, "MessageBody": "x"}),
        (sqs.receive_message, {"QueueUrl": url}),
        (sqs.delete_message, {"QueueUrl": url, "ReceiptHandle": "x"}),
        (sqs.list_dead_letter_source_queues, {"QueueUrl": url}),
    ):
        assert refusal_of(ask, **members) == NO_QUEUE


def test_deleted_queue_is_gone_and_can_be_made_again(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="old")
    sqs.delete_queue(QueueUrl=queue)
    assert refusal_of(sqs.receive_message, QueueUrl=queue) == NO_QUEUE
    assert sqs.create_queue(QueueName=name_of(queue))["QueueUrl"] == queue
    assert receive(sqs, queue) == []


def test_queues_are_listed_in_pages(sqs: Any) -> None:
    prefix = f"list-{uuid4().hex[:8]}"
    made = [sqs.create_queue(QueueName=f"{prefix}-{number}")["QueueUrl"] for number in range(5)]
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2})
    assert [page["QueueUrls"] for page in pages] == [made[:2], made[2:4], made[4:]]
    assert sqs.list_queues(QueueNamePrefix=prefix)["QueueUrls"] == made
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=f"{prefix}x")
    assert refusal_of(sqs.list_queues, MaxResults=1001).code == "InvalidParameterValue"
    assert refusal_of(sqs.list_queues, NextToken="%%%").code == "InvalidParameterValue"


def test_tags_are_kept_with_the_queue(sqs: Any, queue: str) -> None:
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=queue)
    sqs.tag_queue(QueueUrl=queue, Tags={"team": "a", "empty": "", "é": "ü"})
    sqs.tag_queue(QueueUrl=queue, Tags={"team": "b"})
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"team": "b", "empty": "", "é": "ü"}
    sqs.untag_queue(QueueUrl=queue, TagKeys=["team", "none"])
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"empty": "", "é": "ü"}
    too_many = {str(number): "" for number in range(49)}
    assert refusal_of(sqs.tag_queue, QueueUrl=queue, Tags=too_many).code == "InvalidParameterValue"


def test_purge_settles_all_messages(sqs: Any, queue: str) -> None:
    for body in ("a", "b", "c"):
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    receive(sqs, queue, 1)
    sqs.purge_queue(QueueUrl=queue)
    sqs.purge_queue(QueueUrl=queue)
    assert attribute(sqs, queue, "ApproximateNumberOfMessages") == "0"
    sqs.send_message(QueueUrl=queue, MessageBody="d")
    assert bodies(receive(sqs, queue)) == ["d"]


def test_topic_and_subscription_of_one_name_are_a_queue(sqs: Any, broker: Broker) -> None:
    rest, name = Rest(broker), f"rest-{uuid4().hex[:8]}"
    rest.post("/topics", {"name": name})
    rest.post(f"/topics/{name}/subscriptions", {"name": name, "visibility_timeout_ms": 5000, "max_deliveries": 3})
    rest.post(f"/topics/{name}/subscriptions", {"name": f"{name}-other"})
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    assert refusal_of(sqs.get_queue_url, QueueName=f"{name}-other") == NO_QUEUE
    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert shown["VisibilityTimeout"] == "5"
    assert json.loads(shown["RedrivePolicy"]) == {
        "deadLetterTargetArn": f"arn:aws:sqs:us-east-1:000000000000:{name}.dlq",
        "maxReceiveCount": 3,
    }
    rest.publish(name, "hello")
    assert bodies(receive(sqs, url)) == ["hello"]
    sqs.delete_queue(QueueUrl=url)
    assert rest.get(f"/topics/{name}").json["subscriptions"] == [f"{name}-other"]
    rest.close()


def test_queue_of_a_topic_that_is_there_has_its_messages(sqs: Any, broker: Broker) -> None:
    rest, name = Rest(broker), f"there-{uuid4().hex[:8]}"
    rest.post("/topics", {"name": name})
    rest.publish(name, "early")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    assert bodies(receive(sqs, url)) == ["early"]
    sqs.delete_queue(QueueUrl=url)
    assert rest.get(f"/topics/{name}").json["subscriptions"] == []
    rest.close()


def test_queue_is_created_whole_or_not_at_all(sqs: Any, broker: Broker) -> None:
    """The subscription's name is taken, so the topic that was made for it goes again."""
    rest, name = Rest(broker), f"half-{uuid4().hex[:8]}"
    rest.post("/topics", {"name": f"{name}-other"})
    rest.post(f"/topics/{name}-other/subscriptions", {"name": name})
    assert refusal_of(sqs.create_queue, QueueName=name).code == "QueueAlreadyExists"
    assert rest.get(f"/topics/{name}").status == 404
    rest.close()


def test_topics_of_the_broker_become_no_queues(sqs: Any) -> None:
    for name in ("__consumer_offsets", "__transaction_state"):
        refused = refusal_of(sqs.create_queue, QueueName=name)
        assert (refused.code, refused.status) == ("InvalidParameterValue", 400)


def test_redrive_policy_names_a_queue_of_its_kind(sqs: Any, queue: str, make_queue: Callable[..., str]) -> None:
    dead = make_queue()
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, dead), "maxReceiveCount": "2"})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy})
    assert json.loads(attribute(sqs, queue, "RedrivePolicy")) == {**json.loads(policy), "maxReceiveCount": 2}
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [queue]
    assert sqs.list_dead_letter_source_queues(QueueUrl=queue)["queueUrls"] == []
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": ""})
    shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert "RedrivePolicy" not in shown


COUNT = "Invalid value for maxReceiveCount: 0, valid values are from 1 to 1000 both inclusive."


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("{", "Redrive policy is not a valid JSON map."),
        ("[" * 10_000, "Redrive policy is not a valid JSON map."),
        ('{"deadLetterTargetArn": "arn:aws:sqs:r:0:no", "maxReceiveCount": 1}', "Dead letter target does not exist."),
        ('{"deadLetterTargetArn": "arn:aws:sqs:r:0:q", "maxReceiveCount": 0}', COUNT),
    ],
)
def test_wrong_redrive_policies_are_refused(sqs: Any, queue: str, policy: str, reason: str) -> None:
    refused = refusal_of(sqs.set_queue_attributes, QueueUrl=queue, Attributes={"RedrivePolicy": policy})
    text = f"Value {policy[:500]} for parameter RedrivePolicy is invalid. Reason: {reason}"
    assert refused == ("InvalidParameterValue", text, 400)


def test_redrive_policy_has_both_members(sqs: Any, queue: str) -> None:
    for policy, missing in (
        ('{"maxReceiveCount": 1}', "deadLetterTargetArn"),
        ('{"deadLetterTargetArn": "a"}', "maxReceiveCount"),
    ):
        refused = refusal_of(sqs.set_queue_attributes, QueueUrl=queue, Attributes={"RedrivePolicy": policy})
        assert refused == ("InvalidParameterValue", f"The required parameter '{missing}' is missing", 400)


_WRONG = "for parameter ActionName is invalid. Reason:"
WRONG_ACTIONS: tuple[tuple[list[str], str, str], ...] = (
    (
        ["CreateQueue"],
        "InvalidParameterValue",
        f"Value SQS:CreateQueue {_WRONG} Only the queue owner is allowed to invoke this action.",
    ),
    (
        ["Fly"],
        "InvalidParameterValue",
        f"Value SQS:Fly {_WRONG} Please refer to the appropriate WSDL for a list of valid actions. ",
    ),
    ([], "MissingParameter", "The request must contain the parameter Actions."),
    (["SendMessage"] * 8, "OverLimit", "8 Actions were found, maximum allowed is 7."),
)


def test_permissions_are_statements_of_the_policy(sqs: Any, queue: str) -> None:
    sqs.add_permission(QueueUrl=queue, Label="one", AWSAccountIds=["1" * 12], Actions=["SendMessage"])
    sqs.add_permission(QueueUrl=queue, Label="two", AWSAccountIds=["1" * 12, "2" * 12], Actions=["*"])
    policy = json.loads(attribute(sqs, queue, "Policy"))
    assert policy["Statement"][0] == {
        "Sid": "one",
        "Effect": "Allow",
        "Principal": {"AWS": f"arn:aws:iam::{'1' * 12}:root"},
        "Action": "SQS:SendMessage",
        "Resource": arn(sqs, queue),
    }
    assert policy["Id"] == f"{arn(sqs, queue)}/SQSDefaultPolicy"
    add = {"QueueUrl": queue, "AWSAccountIds": ["1" * 12], "Actions": ["SendMessage"]}
    refused = refusal_of(sqs.add_permission, Label="one", **add)
    assert refused.message == "Value one for parameter Label is invalid. Reason: Already exists."
    for actions, code, reason in WRONG_ACTIONS:
        refused = refusal_of(sqs.add_permission, Label="b", **{**add, "Actions": actions})
        assert (refused.code, refused.message) == (code, reason)
    for label in ("one", "two"):
        sqs.remove_permission(QueueUrl=queue, Label=label)
    shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert "Policy" not in shown
    refused = refusal_of(sqs.remove_permission, QueueUrl=queue, Label="one")
    assert refused.message == "Value one for parameter Label is invalid. Reason: can't find label."
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": "[]"})
    sqs.add_permission(Label="c", **add)
    assert json.loads(attribute(sqs, queue, "Policy"))["Statement"][0]["Sid"] == "c"
