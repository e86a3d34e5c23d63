"""DeleteMessage and ChangeMessageVisibility, one message or a batch of them.

A receipt handle is the ack id of a lease. In a standard queue the last one of a message deletes it also when the lease
has ended, and an older one is forgiven: the request succeeds, and has no effect. Every one changes the visibility of
its message, whoever has received it since. A FIFO queue refuses those whose lease has ended.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from conveyor.http_api.sqs.actions.batch_results import divide
from conveyor.http_api.sqs.actions.sqs_action import ActionCall
from conveyor.http_api.sqs.content.batch_entries import check_entry_ids
from conveyor.http_api.sqs.content.sqs_message_ids import check_receipt_handle
from conveyor.http_api.sqs.protocols.message_operations import (
    ChangeMessageVisibilityBatchRequest,
    ChangeMessageVisibilityBatchResult,
    ChangeMessageVisibilityBatchResultEntry,
    ChangeMessageVisibilityRequest,
    DeleteMessageBatchRequest,
    DeleteMessageBatchResult,
    DeleteMessageBatchResultEntry,
    DeleteMessageRequest,
)
from conveyor.http_api.sqs.queues.queue_names import is_fifo_name
from conveyor.http_api.sqs.sqs_errors import SqsError, invalid_parameter, missing_parameter
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import Subscription

MAX_VISIBILITY_S = 43_200
_LOST = frozenset((ErrorKind.LEASE_LOST, ErrorKind.UNKNOWN_MESSAGE))

Results = Sequence[RequestError | None]


def delete_message(call: ActionCall[DeleteMessageRequest]) -> None:
    """Acknowledge a message."""
    handle, queue = call.members.receipt_handle, call.queue()
    error = _wrong_handle(queue, handle)
    if error is not None:
        raise error

    def made(errors: Results) -> None:
        found = _delete_error(queue, handle, errors[0])
        if found is not None:
            raise found

    _ack(call, [handle], partial(call.reply, make=made))


def delete_message_batch(call: ActionCall[DeleteMessageBatchRequest]) -> None:
    """Acknowledge messages. Each has its own result."""
    entries, queue = call.members.entries, call.queue()
    check_entry_ids((entry.id for entry in entries), "DeleteMessageBatchRequestEntry")
    wrong = [_wrong_handle(queue, entry.receipt_handle) for entry in entries]
    handles = [entry.receipt_handle for entry, error in zip(entries, wrong, strict=True) if error is None]

    def made(errors: Results) -> DeleteMessageBatchResult:
        left = iter(errors)
        results: list[DeleteMessageBatchResultEntry | RequestError] = []
        for entry, error in zip(entries, wrong, strict=True):
            found = error or _delete_error(queue, entry.receipt_handle, next(left))
            results.append(found or DeleteMessageBatchResultEntry(id=entry.id))
        successful, failed = divide(entries, results)
        return DeleteMessageBatchResult(successful=successful, failed=failed)

    _ack(call, handles, partial(call.reply, make=made))


def change_message_visibility(call: ActionCall[ChangeMessageVisibilityRequest]) -> None:
    """Change the end of a lease. 0 makes the message available."""
    handle, seconds, queue = call.members.receipt_handle, call.members.visibility_timeout, call.queue()
    error = _wrong_handle(queue, handle) or _wrong_timeout(seconds)
    if error is not None:
        raise error

    def made(errors: Results) -> None:
        found = _change_error(handle, errors[0])
        if found is not None:
            raise found

    _change(call, [handle], seconds, partial(call.reply, make=made))


def change_message_visibility_batch(call: ActionCall[ChangeMessageVisibilityBatchRequest]) -> None:
    """Change the ends of leases. Each has its own result."""
    entries, queue = call.members.entries, call.queue()
    check_entry_ids((entry.id for entry in entries), "ChangeMessageVisibilityBatchRequestEntry")
    results: list[Any] = [
        _wrong_handle(queue, entry.receipt_handle) or _wrong_timeout(entry.visibility_timeout) for entry in entries
    ]
    by_timeout: dict[int, list[int]] = {}
    for index, entry in enumerate(entries):
        if results[index] is None and entry.visibility_timeout is not None:
            by_timeout.setdefault(entry.visibility_timeout, []).append(index)
    open_count = len(by_timeout)

    def finish() -> None:
        made = [
            result or ChangeMessageVisibilityBatchResultEntry(id=entry.id)
            for entry, result in zip(entries, results, strict=True)
        ]
        successful, failed = divide(entries, made)
        call.reply(ChangeMessageVisibilityBatchResult(successful=successful, failed=failed), make=lambda made: made)

    def changed(indexes: list[int], errors: Results | RequestError) -> None:
        nonlocal open_count
        found = [errors] * len(indexes) if isinstance(errors, RequestError) else errors
        for index, error in zip(indexes, found, strict=True):
            results[index] = _change_error(entries[index].receipt_handle, error)
        open_count -= 1
        if not open_count:
            finish()

    for seconds, indexes in by_timeout.items():
        handles = [entries[index].receipt_handle for index in indexes]
        _change(call, handles, seconds, partial(changed, indexes))
    if not by_timeout:
        finish()


def _ack(call: ActionCall[Any], handles: list[str], reply: Callable[[Any], None]) -> None:
    if handles:
        is_late_too = not is_fifo_name(call.queue_name)
        settlements, caller = call.broker.queues.settlements, call.http.caller
        settlements.ack(caller, call.queue_name, handles, reply, accepts_late=is_late_too)
    else:
        reply([])


def _change(call: ActionCall[Any], handles: list[str], seconds: int, reply: Callable[[Any], None]) -> None:
    is_late_too = not is_fifo_name(call.queue_name)
    settlements, caller = call.broker.queues.settlements, call.http.caller
    settlements.change_visibility(caller, call.queue_name, handles, 1000 * seconds, reply, accepts_late=is_late_too)


def _wrong_handle(queue: Subscription, handle: str) -> SqsError | None:
    if not handle:
        return missing_parameter("ReceiptHandle")
    try:
        check_receipt_handle(queue.id, handle)
    except SqsError as error:
        return error.detached()
    return None


def _wrong_timeout(seconds: int | None) -> SqsError | None:
    if seconds is None:
        return missing_parameter("VisibilityTimeout")
    if 0 <= seconds <= MAX_VISIBILITY_S:
        return None
    return invalid_parameter(
        f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: VisibilityTimeout must be an integer"
        f" between 0 and {MAX_VISIBILITY_S}."
    )


def _delete_error(queue: Subscription, handle: str, error: RequestError | None) -> RequestError | None:
    if error is None or error.kind not in _LOST or not is_fifo_name(queue.name):
        return None if error is None or error.kind in _LOST else error
    return invalid_parameter(
        f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    )


def _change_error(handle: str, error: RequestError | None) -> RequestError | None:
    if error is None or error.kind not in _LOST:
        return error
    return invalid_parameter(
        f"Value {handle} for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available"
        " for visibility timeout change."
    )
