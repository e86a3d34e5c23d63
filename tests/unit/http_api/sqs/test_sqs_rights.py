"""Every operation of SQS needs the rights of the REST verbs that do the same, and is refused without each of them."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest

from conveyor.broker.clients import credentials
from conveyor.http_api.application import ENDPOINTS
from conveyor.http_api.sqs.actions.action_table import ACTIONS
from conveyor.http_api.sqs.moves.move_task import TaskHandle, encode_handle
from conveyor.http_api.sqs.protocols.sqs_operation import OPERATIONS
from conveyor.kernel.access.declared_access import AnyOf
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER
from tests.unit.http_api.guarded_door import GuardedDoor, guarded_door

TOPIC, NAMED = "/topics/{topic}", "/subscriptions/{subscription}"
VERBS: dict[str, tuple[str, ...]] = {
    "ChangeMessageVisibility": (f"POST {NAMED}/extend", f"POST {NAMED}/nack"),
    "ChangeMessageVisibilityBatch": (f"POST {NAMED}/extend", f"POST {NAMED}/nack"),
    "CreateQueue": ("POST /topics", f"POST {TOPIC}/subscriptions"),
    "DeleteMessage": (f"POST {NAMED}/ack",),
    "DeleteMessageBatch": (f"POST {NAMED}/ack",),
    "DeleteQueue": (f"DELETE {TOPIC}", f"DELETE {NAMED}"),
    "GetQueueAttributes": (f"GET {TOPIC}", f"GET {NAMED}"),
    "GetQueueUrl": (f"GET {NAMED}",),
    "AddPermission": (f"PATCH {NAMED}",),
    "RemovePermission": (f"PATCH {NAMED}",),
    "CancelMessageMoveTask": (f"GET {NAMED}/messages",),
    "ListMessageMoveTasks": (f"GET {NAMED}",),
    "StartMessageMoveTask": (f"GET {NAMED}/messages", f"POST {NAMED}/ack", f"POST {TOPIC}/messages"),
    "ListDeadLetterSourceQueues": (f"GET {NAMED}",),
    "ListQueueTags": (f"GET {NAMED}",),
    "ListQueues": ("GET /subscriptions",),
    "PurgeQueue": (f"POST {NAMED}/purge",),
    "ReceiveMessage": (f"GET {NAMED}/messages",),
    "SendMessage": (f"POST {TOPIC}/messages",),
    "SendMessageBatch": (f"POST {TOPIC}/messages:batch",),
    "SetQueueAttributes": (f"PATCH {TOPIC}", f"PATCH {NAMED}"),
    "TagQueue": (f"PATCH {NAMED}",),
    "UntagQueue": (f"PATCH {NAMED}",),
}
"""The REST verbs that do what an operation does. No operation creates a topic by sending to it."""
SEND = {"MessageBody": "m"}
ENTRY = "SendMessageBatchRequestEntry.1"
DEAD = '{"deadLetterTargetArn":"arn:aws:sqs:r:0:mails","maxReceiveCount":1}'
HANDLE = {"ReceiptHandle": "none"}
WORK, MAILS = "arn:aws:sqs:r:0:work", "arn:aws:sqs:r:0:mails"
REQUESTS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "AddPermission": (
        {"Label": "a", "AWSAccountId.1": "0" * 12, "ActionName.1": "*"},
        {"rights": "alterconfigs group work"},
    ),
    "RemovePermission": ({"Label": "a"}, {"rights": "alterconfigs group work", "error": "find label"}),
    "CancelMessageMoveTask": (
        {"TaskHandle": encode_handle(TaskHandle("none", WORK))},
        {"error": "ResourceNotFoundException"},
    ),
    "ListMessageMoveTasks": ({"SourceArn": WORK}, {"rights": "describe group work"}),
    "StartMessageMoveTask": (
        {"SourceArn": WORK, "DestinationArn": MAILS},
        {"rights": "read group work, read topic work, write topic mails", "error": "InvalidParameterValue"},
    ),
    "ChangeMessageVisibility": ({**HANDLE, "VisibilityTimeout": "1"}, {"error": "ReceiptHandleIsInvalid"}),
    "ChangeMessageVisibilityBatch": (
        {
            "ChangeMessageVisibilityBatchRequestEntry.1.Id": "a",
            "ChangeMessageVisibilityBatchRequestEntry.1.ReceiptHandle": "none",
        },
        {},
    ),
    "CreateQueue": (
        {"QueueName": "new", "Attribute.1.Name": "RedrivePolicy", "Attribute.1.Value": DEAD},
        {"rights": "create topic new, read group new, read topic new, write topic mails"},
    ),
    "DeleteMessage": (HANDLE, {"error": "ReceiptHandleIsInvalid"}),
    "DeleteMessageBatch": (
        {"DeleteMessageBatchRequestEntry.1.Id": "a", "DeleteMessageBatchRequestEntry.1.ReceiptHandle": "none"},
        {},
    ),
    "DeleteQueue": ({}, {"rights": "delete topic work, delete group work"}),
    "GetQueueAttributes": (
        {"AttributeName.1": "All"},
        {"rights": "describe group work, describe topic work, describeconfigs topic work"},
    ),
    "GetQueueUrl": ({"QueueName": "work"}, {"rights": "describe group work"}),
    "ListDeadLetterSourceQueues": ({}, {"rights": "describe group work"}),
    "ListQueueTags": ({}, {"rights": "describe group work"}),
    "PurgeQueue": ({}, {"rights": "delete group work, read topic work"}),
    "ReceiveMessage": ({}, {}),
    "SendMessage": (SEND, {"rights": "write topic work"}),
    "SendMessageBatch": ({f"{ENTRY}.Id": "a", f"{ENTRY}.MessageBody": "m"}, {"rights": "write topic work"}),
    "SetQueueAttributes": (
        {"Attribute.1.Name": "RedrivePolicy", "Attribute.1.Value": DEAD},
        {"rights": "alterconfigs group work, alter topic work, alterconfigs topic work, write topic mails"},
    ),
    "TagQueue": ({"Tag.1.Key": "a", "Tag.1.Value": "b"}, {"rights": "alterconfigs group work"}),
    "UntagQueue": ({"TagKey.1": "a"}, {"rights": "alterconfigs group work"}),
}
"""The members of a request besides the queue; the rights that it needs, and the error that it gets with them."""
READ = "read group work, read topic work"


@pytest.fixture
async def door(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GuardedDoor]:
    monkeypatch.setattr(credentials, "_REFUSAL_PAUSE_S", 0)
    async with guarded_door() as door:
        for name in ("work", "mails"):
            topics = door.broker.metadata.image.topics
            if name not in topics:
                await ask(door, "root", "CreateQueue", {"QueueName": name})
            else:
                await door.broker.queues.lifecycle.create(CALLER, name, name, StartPosition(), {})
        yield door


async def ask(door: GuardedDoor, user: str | None, action: str, members: dict[str, str]) -> tuple[int, str]:
    """Return the status and the document of an answer to the query protocol."""
    queue = {} if "QueueName" in members else {"QueueUrl": "http://h/000000000000/work"}
    answer = await door.ask(user, "POST", "/", urlencode({"Action": action, **queue, **members}).encode())
    return answer.status, answer.document.decode()


def test_each_operation_needs_the_rights_of_its_verbs() -> None:
    assert VERBS.keys() == ACTIONS.keys() == OPERATIONS.keys()
    by_name = {f"{each.method} {each.path}": each for each in ENDPOINTS}
    for name, action in ACTIONS.items():
        needs = [need for verb in VERBS[name] for need in by_name[verb].needs]
        needed = {str(need) for need in needs if not (isinstance(need, AnyOf) and need.to_create)}
        if not (action.dead_letter_needs or name.startswith("Send")):
            needed.discard("Write Topic")  # Of a dead-letter topic, which the operation cannot set.
        assert {str(need) for need in (*action.needs, *action.dead_letter_needs)} == needed, name


@pytest.mark.parametrize("action", sorted(REQUESTS))
async def test_request_needs_each_right_and_no_other(door: GuardedDoor, action: str) -> None:
    members, expected = REQUESTS[action]
    needed = expected.get("rights", READ).split(", ")
    status, document = await ask(door, None, action, members)
    assert status == 403
    assert "<Code>MissingAuthenticationToken</Code>" in document
    before = state(door)
    for missing in needed:
        await door.allow_only("alice", [right for right in needed if right != missing])
        status, document = await ask(door, "alice", action, members)
        assert (status, "<Code>AccessDenied</Code>" in document) == (403, True), missing
        assert "work" not in document.replace("alice", "")
        assert state(door) == before
    await door.allow_only("alice", needed)
    status, document = await ask(door, "alice", action, members)
    assert (status == 200) is ("error" not in expected), document
    assert expected.get("error", "") in document


async def test_list_leaves_out_what_the_client_may_not_describe(door: GuardedDoor) -> None:
    _, document = await ask(door, "alice", "ListQueues", {"QueueName": ""})
    assert "<QueueUrl>" not in document
    await door.allow_only("alice", ["describe group mails"])
    _, document = await ask(door, "alice", "ListQueues", {"QueueName": ""})
    assert document.count("<QueueUrl>") == 1
    assert "/mails<" in document


async def test_what_is_forbidden_looks_like_what_is_missing(door: GuardedDoor) -> None:
    forbidden = await ask(door, "alice", "GetQueueUrl", {"QueueName": "work"})
    missing = await ask(door, "alice", "GetQueueUrl", {"QueueName": "none"})
    assert [strip_id(document) for _, document in (forbidden, missing)] == [strip_id(forbidden[1])] * 2


def strip_id(document: str) -> str:
    return document.partition("<RequestId>")[0]


def state(door: GuardedDoor) -> Any:
    image = door.broker.metadata.image
    ends = {str(each.identity): each.log.log_end_offset for each in door.broker.partitions.table}
    return image.topics, image.subscriptions, {name: end for name, end in ends.items() if not name.startswith("__")}
