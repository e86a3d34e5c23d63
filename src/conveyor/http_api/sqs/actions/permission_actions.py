"""AddPermission and RemovePermission, which change a queue's policy. Rights are ACLs: a policy has no effect."""

from conveyor.http_api.sqs.actions.sqs_action import ActionCall
from conveyor.http_api.sqs.protocols.queue_operations import AddPermissionRequest, RemovePermissionRequest
from conveyor.http_api.sqs.queues.queue_attribute_rules import POLICY, check_attributes
from conveyor.http_api.sqs.queues.queue_names import is_fifo_name, queue_arn
from conveyor.http_api.sqs.queues.queue_policy import with_permission, without_permission
from conveyor.http_api.sqs.queues.stored_queue import annotation_changes, attribute_of


async def add_permission(call: ActionCall[AddPermissionRequest]) -> None:
    """Add a statement to the policy."""
    members, policy, arn = call.members, attribute_of(call.queue(), POLICY), _arn(call)
    await _write(call, with_permission(policy, arn, members.label, members.account_ids, members.actions))


async def remove_permission(call: ActionCall[RemovePermissionRequest]) -> None:
    """Remove a statement from the policy."""
    policy = attribute_of(call.queue(), POLICY)
    await _write(call, without_permission(policy, _arn(call), call.members.label))


def _arn(call: ActionCall[AddPermissionRequest] | ActionCall[RemovePermissionRequest]) -> str:
    return queue_arn(call.settings.region, call.queue_name)


async def _write(call: ActionCall[AddPermissionRequest] | ActionCall[RemovePermissionRequest], policy: str) -> None:
    given = {POLICY: policy}
    check_attributes(given, is_fifo=is_fifo_name(call.queue_name))
    changes = annotation_changes(given)
    await call.broker.queues.lifecycle.change(call.http.caller, call.queue_name, {}, annotations=changes)
