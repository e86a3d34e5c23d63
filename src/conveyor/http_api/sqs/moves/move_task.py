"""What is kept of a move task: an annotation of the queue that it empties, so that every broker can show and cancel it.

    sqs.move.<id>           the task, as JSON; only the broker that runs it changes it
    sqs.move-cancel.<id>    somebody has cancelled it

A task whose broker has written nothing for a minute has ended with it.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping

import msgspec

from conveyor.queues.subscription.policy import Subscription

RUNNING, COMPLETED, CANCELLING, CANCELLED, FAILED = "RUNNING", "COMPLETED", "CANCELLING", "CANCELLED", "FAILED"
KEPT = 10
"""Tasks of a queue, the latest ones."""

_TASK, _CANCEL = "sqs.move.", "sqs.move-cancel."
_SILENT_MS = 60_000
_STOPPED = "The broker that moved the messages has stopped."
_ACTIVE = (RUNNING, CANCELLING)


class MoveTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """destination: a queue; None for the queue that each message came from. rate: messages a second; None for no limit.

    updated_ms: when its broker has written it last.
    """

    id: str
    status: str
    destination: str | None = None
    rate: int | None = None
    moved: int = 0
    to_move: int = 0
    started_ms: int
    updated_ms: int
    reason: str | None = None

    @property
    def is_active(self) -> bool:
        return self.status in _ACTIVE


class TaskHandle(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a handle, which is their JSON in base64."""

    task_id: str
    source_arn: str


def tasks_of(queue: Subscription, now_ms: int) -> list[MoveTask]:
    """Return the tasks of a queue, latest first, as they are now."""
    found = [_read(text) for name, text in queue.annotations.items() if name.startswith(_TASK)]
    found.sort(key=lambda task: (task.started_ms, task.id), reverse=True)
    return [_current(task, queue, now_ms) for task in found]


def is_cancelled(queue: Subscription, task: MoveTask) -> bool:
    return _CANCEL + task.id in queue.annotations


def written(task: MoveTask) -> dict[str, str | None]:
    """Return the changes of annotations that keep a task."""
    changes: dict[str, str | None] = {_TASK + task.id: msgspec.json.encode(task).decode()}
    return changes if task.is_active else {**changes, _CANCEL + task.id: None}


def cancelled(task: MoveTask) -> Mapping[str, str | None]:
    """Return the change of annotations that cancels a task."""
    return {_CANCEL + task.id: "1"}


def forgotten(task: MoveTask) -> dict[str, str | None]:
    """Return the changes of annotations that forget a task."""
    return {_TASK + task.id: None, _CANCEL + task.id: None}


def encode_handle(handle: TaskHandle) -> str:
    return urlsafe_b64encode(msgspec.json.encode(handle)).decode()


def decode_handle(text: str) -> TaskHandle | None:
    """Return the fields of a handle; None if a text is none."""
    try:
        return msgspec.json.decode(urlsafe_b64decode(text.encode()), type=TaskHandle)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


def _read(text: str) -> MoveTask:
    return msgspec.json.decode(text, type=MoveTask)


def _current(task: MoveTask, queue: Subscription, now_ms: int) -> MoveTask:
    if not task.is_active:
        return task
    if now_ms - task.updated_ms > _SILENT_MS:
        return msgspec.structs.replace(task, status=FAILED, reason=_STOPPED)
    return msgspec.structs.replace(task, status=CANCELLING) if is_cancelled(queue, task) else task
