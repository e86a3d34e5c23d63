"""StartMessageMoveTask, ListMessageMoveTasks and CancelMessageMoveTask, for dead-letter queues."""

import logging
from uuid import uuid4

from conveyor.broker.broker_node import BrokerNode
from conveyor.http_api.sqs.actions.sqs_action import ActionCall
from conveyor.http_api.sqs.moves.move_run import MoveRun
from conveyor.http_api.sqs.moves.move_task import (
    KEPT,
    RUNNING,
    MoveTask,
    TaskHandle,
    cancelled,
    decode_handle,
    encode_handle,
    forgotten,
    tasks_of,
    written,
)
from conveyor.http_api.sqs.protocols.move_task_operations import (
    CancelMessageMoveTaskRequest,
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksRequest,
    ListMessageMoveTasksResult,
    ListMessageMoveTasksResultEntry,
    StartMessageMoveTaskRequest,
    StartMessageMoveTaskResult,
)
from conveyor.http_api.sqs.queues.queue_names import existing_queue, name_of_arn, queue_arn
from conveyor.http_api.sqs.queues.stored_queue import redrive_policy_of
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind, invalid_parameter
from conveyor.queues.subscription.policy import Subscription

log = logging.getLogger(__name__)

_MAX_RATE = 500


async def start_message_move_task(call: ActionCall[StartMessageMoveTaskRequest]) -> StartMessageMoveTaskResult:
    """Start a task that moves the messages of a dead-letter queue, and return its handle."""
    members, broker = call.members, call.broker
    queue = _resource(call.broker, call.queue_name, "SourceArn")
    rate, destination = members.max_number_of_messages_per_second, destination_of(members)
    if rate is not None and not 1 <= rate <= _MAX_RATE:
        raise invalid_parameter(
            f"Value {rate} for parameter MaxNumberOfMessagesPerSecond is invalid. Reason: Must be between 1 and 500."
        )
    if destination is not None:
        _resource(broker, destination, "DestinationArn")
        if destination == queue.name:
            raise invalid_parameter("Source queue arn and destination queue arn cannot be the same.")
    if not await _is_dead_letter_queue(broker, queue.name):
        raise invalid_parameter("Source queue must be configured as a Dead Letter Queue.")
    task = await _registered(call, queue, destination, rate)
    broker.tasks.start(MoveRun(broker, call.http.caller, queue.name, task).run(), _note_bug)
    return StartMessageMoveTaskResult(task_handle=_handle(call.settings.region, queue.name, task))


async def list_message_move_tasks(call: ActionCall[ListMessageMoveTasksRequest]) -> ListMessageMoveTasksResult:
    """List the latest tasks of a queue."""
    queue, region = _resource(call.broker, call.queue_name, "SourceArn"), call.settings.region
    count = 1 if call.members.max_results is None else call.members.max_results
    if not 1 <= count <= KEPT:
        raise invalid_parameter("Value for parameter MaxResults is invalid. Reason: Must be between 1 and 10.")
    tasks = tasks_of(queue, call.broker.clock.now_ms())[:count]
    return ListMessageMoveTasksResult(results=[_entry(region, queue.name, task) for task in tasks])


async def cancel_message_move_task(call: ActionCall[CancelMessageMoveTaskRequest]) -> CancelMessageMoveTaskResult:
    """Cancel a running task. The messages that it has moved stay where they are."""
    handle, broker = decode_handle(call.members.task_handle), call.broker
    queue = _resource(broker, call.queue_name, "SourceArn")
    found = [task for task in tasks_of(queue, broker.clock.now_ms()) if handle and task.id == handle.task_id]
    if not found:
        raise SqsError(SqsErrorKind.RESOURCE_NOT_FOUND, "Task does not exist.")
    [task] = found
    if task.status != RUNNING:
        raise invalid_parameter("Only active tasks can be cancelled.")
    await broker.queues.lifecycle.change(call.http.caller, queue.name, {}, annotations=cancelled(task))
    return CancelMessageMoveTaskResult(approximate_number_of_messages_moved=task.moved)


def source_of(members: StartMessageMoveTaskRequest | ListMessageMoveTasksRequest) -> str:
    """Return the queue whose tasks a request is about. Raises SqsError."""
    return _name_of(members.source_arn, "SourceArn")


def destination_of(members: StartMessageMoveTaskRequest) -> str | None:
    """Return the queue to which a request moves messages, if it names one. Raises SqsError."""
    return None if members.destination_arn is None else _name_of(members.destination_arn, "DestinationArn")


def source_of_task(members: CancelMessageMoveTaskRequest) -> str:
    """Return the queue of the task that a handle names. Raises SqsError."""
    handle = decode_handle(members.task_handle)
    if handle is None:
        raise invalid_parameter("Value for parameter TaskHandle is invalid.")
    return _name_of(handle.source_arn, "SourceArn")


def _name_of(arn: str, parameter: str) -> str:
    name = name_of_arn(arn)
    if name is None:
        raise invalid_parameter(
            f"You must use this format to specify the {parameter}:"
            " arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
        )
    return name


def _resource(broker: BrokerNode, name: str, parameter: str) -> Subscription:
    try:
        return existing_queue(broker, name)
    except SqsError:
        reason = f"The resource that you specified for the {parameter} parameter doesn't exist."
        raise SqsError(SqsErrorKind.RESOURCE_NOT_FOUND, reason) from None


async def _is_dead_letter_queue(broker: BrokerNode, name: str) -> bool:
    async for queue in broker.slices.each(broker.cluster.subscriptions.all()):
        policy = redrive_policy_of(queue)
        if policy is not None and policy.dead_letter_queue == name:
            return True
    return False


async def _registered(
    call: ActionCall[StartMessageMoveTaskRequest], queue: Subscription, destination: str | None, rate: int | None
) -> MoveTask:
    """Keep a new task. Of two that start at once, the earlier one goes on. Raises SqsError."""
    broker, caller = call.broker, call.http.caller
    now_ms = broker.clock.now_ms()
    before = tasks_of(queue, now_ms)
    _check_none_runs(before)
    stats = await broker.queues.statistics.stats(caller, queue.name)
    task = MoveTask(
        id=str(uuid4()),
        status=RUNNING,
        destination=destination,
        rate=rate,
        to_move=stats.depth,
        started_ms=now_ms,
        updated_ms=now_ms,
    )
    changes = written(task)
    for old in before[KEPT - 1 :]:
        changes |= forgotten(old)
    changed = await broker.queues.lifecycle.change(caller, queue.name, {}, annotations=changes)
    others = [other for other in tasks_of(changed, now_ms) if other.is_active and other.id < task.id]
    if others:
        await broker.queues.lifecycle.change(caller, queue.name, {}, annotations=forgotten(task))
        _check_none_runs(others)
    return task


def _check_none_runs(tasks: list[MoveTask]) -> None:
    if any(task.is_active for task in tasks):
        raise invalid_parameter(
            "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
        )


def _note_bug(error: Exception) -> None:
    log.error("move task failed", exc_info=error)


def _handle(region: str, source: str, task: MoveTask) -> str:
    return encode_handle(TaskHandle(task.id, queue_arn(region, source)))


def _entry(region: str, source: str, task: MoveTask) -> ListMessageMoveTasksResultEntry:
    return ListMessageMoveTasksResultEntry(
        task_handle=_handle(region, source, task) if task.status == RUNNING else None,
        status=task.status,
        source_arn=queue_arn(region, source),
        destination_arn=None if task.destination is None else queue_arn(region, task.destination),
        max_number_of_messages_per_second=task.rate,
        approximate_number_of_messages_moved=task.moved,
        approximate_number_of_messages_to_move=task.to_move,
        failure_reason=task.reason,
        started_timestamp=task.started_ms,
    )
