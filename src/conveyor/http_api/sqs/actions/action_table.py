"""The operations, each with the rights that it needs: those of the REST verbs that do the same."""

from collections.abc import Mapping
from typing import Any

from conveyor.cluster.quotas import CONSUMER_BYTE_RATE, CONTROLLER_MUTATION_RATE, PRODUCER_BYTE_RATE
from conveyor.http_api.sqs.actions.attribute_actions import (
    get_queue_attributes,
    list_queue_tags,
    set_queue_attributes,
    tag_queue,
    untag_queue,
)
from conveyor.http_api.sqs.actions.create_queue_action import create_queue
from conveyor.http_api.sqs.actions.move_actions import (
    cancel_message_move_task,
    destination_of,
    list_message_move_tasks,
    source_of,
    source_of_task,
    start_message_move_task,
)
from conveyor.http_api.sqs.actions.permission_actions import add_permission, remove_permission
from conveyor.http_api.sqs.actions.queue_actions import (
    delete_queue,
    get_queue_url,
    list_dead_letter_source_queues,
    list_queues,
    purge_queue,
)
from conveyor.http_api.sqs.actions.receive_action import receive_message
from conveyor.http_api.sqs.actions.send_actions import send_message, send_message_batch
from conveyor.http_api.sqs.actions.settle_actions import (
    change_message_visibility,
    change_message_visibility_batch,
    delete_message,
    delete_message_batch,
)
from conveyor.http_api.sqs.actions.sqs_action import SqsAction
from conveyor.http_api.sqs.queues.queue_attribute_rules import REDRIVE
from conveyor.http_api.sqs.queues.redrive_policy import parse_redrive_policy
from conveyor.kernel.access.declared_access import (
    ALTER,
    ALTER_CONFIGS,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    READ,
    WRITE,
    Needs,
    any_of,
    cluster,
    group,
    topic,
)

_DEAD_LETTERS: Needs = (topic(WRITE, "dead_letter_queue"),)
"""As of a subscription that names a dead-letter topic."""
_CREATE: Needs = (any_of(cluster(CREATE), topic(CREATE, "queue")), group(READ, "queue"), topic(READ, "queue"))
_DELETE: Needs = (topic(DELETE, "queue"), group(DELETE, "queue"))
_DESCRIBE: Needs = (group(DESCRIBE, "queue"),)
_SHOW: Needs = (group(DESCRIBE, "queue"), topic(DESCRIBE, "queue"), topic(DESCRIBE_CONFIGS, "queue"))
_SET: Needs = (group(ALTER_CONFIGS, "queue"), topic(ALTER, "queue"), topic(ALTER_CONFIGS, "queue"))
_ANNOTATE: Needs = (group(ALTER_CONFIGS, "queue"),)
_SEND: Needs = (topic(WRITE, "queue"),)
_LEASE: Needs = (group(READ, "queue"), topic(READ, "queue"))
_PURGE: Needs = (group(DELETE, "queue"), topic(READ, "queue"))
_LIST: Needs = (group(DESCRIBE),)


def _named(members: Any) -> str:
    name: str = members.queue_name
    return name


def _dead_letter_queue(members: Any) -> str | None:
    policy = parse_redrive_policy((members.attributes or {}).get(REDRIVE, ""))
    return None if policy is None else policy.dead_letter_queue


ACTIONS: Mapping[str, SqsAction] = {
    "AddPermission": SqsAction(function=add_permission, needs=_ANNOTATE),
    "CancelMessageMoveTask": SqsAction(function=cancel_message_move_task, needs=_LEASE, queue=source_of_task),
    "ChangeMessageVisibility": SqsAction(function=change_message_visibility, needs=_LEASE),
    "ChangeMessageVisibilityBatch": SqsAction(function=change_message_visibility_batch, needs=_LEASE),
    "CreateQueue": SqsAction(
        function=create_queue,
        needs=_CREATE,
        queue=_named,
        dead_letter_queue=_dead_letter_queue,
        dead_letter_needs=_DEAD_LETTERS,
        quotas=(CONTROLLER_MUTATION_RATE,),
    ),
    "DeleteMessage": SqsAction(function=delete_message, needs=_LEASE),
    "DeleteMessageBatch": SqsAction(function=delete_message_batch, needs=_LEASE),
    "DeleteQueue": SqsAction(function=delete_queue, needs=_DELETE, quotas=(CONTROLLER_MUTATION_RATE,)),
    "GetQueueAttributes": SqsAction(function=get_queue_attributes, needs=_SHOW),
    "GetQueueUrl": SqsAction(function=get_queue_url, needs=_DESCRIBE, queue=_named),
    "ListDeadLetterSourceQueues": SqsAction(function=list_dead_letter_source_queues, needs=_DESCRIBE),
    "ListMessageMoveTasks": SqsAction(function=list_message_move_tasks, needs=_DESCRIBE, queue=source_of),
    "ListQueueTags": SqsAction(function=list_queue_tags, needs=_DESCRIBE),
    "ListQueues": SqsAction(function=list_queues, needs=_LIST, queue=None),
    "PurgeQueue": SqsAction(function=purge_queue, needs=_PURGE),
    "ReceiveMessage": SqsAction(function=receive_message, needs=_LEASE, quotas=(CONSUMER_BYTE_RATE,)),
    "RemovePermission": SqsAction(function=remove_permission, needs=_ANNOTATE),
    "SendMessage": SqsAction(function=send_message, needs=_SEND, quotas=(PRODUCER_BYTE_RATE,)),
    "SendMessageBatch": SqsAction(function=send_message_batch, needs=_SEND, quotas=(PRODUCER_BYTE_RATE,)),
    "SetQueueAttributes": SqsAction(
        function=set_queue_attributes,
        needs=_SET,
        dead_letter_queue=_dead_letter_queue,
        dead_letter_needs=_DEAD_LETTERS,
    ),
    "StartMessageMoveTask": SqsAction(
        function=start_message_move_task,
        needs=_LEASE,
        queue=source_of,
        dead_letter_queue=destination_of,
        dead_letter_needs=_DEAD_LETTERS,
    ),
    "TagQueue": SqsAction(function=tag_queue, needs=_ANNOTATE),
    "UntagQueue": SqsAction(function=untag_queue, needs=_ANNOTATE),
}
