"""The requests and answers of message move tasks, which move dead letters back to a queue."""

from typing import Annotated

from msgspec import Meta, Struct

from conveyor.http_api.sqs.protocols.sqs_members import Int32, wire_name


class StartMessageMoveTaskRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """StartMessageMoveTask. destination_arn: None moves each message back to the queue that it came from."""

    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: Int32 | None = None


class StartMessageMoveTaskResult(Struct, rename=wire_name, frozen=True, kw_only=True):
    """The handle of the new task."""

    task_handle: str


class CancelMessageMoveTaskRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """CancelMessageMoveTask."""

    task_handle: str


class CancelMessageMoveTaskResult(Struct, rename=wire_name, frozen=True, kw_only=True):
    """The count of messages that the task has moved."""

    approximate_number_of_messages_moved: int


class ListMessageMoveTasksRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """ListMessageMoveTasks: the latest tasks of a queue, ten at most."""

    source_arn: str
    max_results: Int32 | None = None


class ListMessageMoveTasksResultEntry(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """A task. status: RUNNING, COMPLETED, CANCELLING, CANCELLED or FAILED. started_timestamp: in milliseconds.

    task_handle: of a running task only.
    """

    task_handle: str | None = None
    status: str
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_moved: int | None = None
    approximate_number_of_messages_to_move: int | None = None
    failure_reason: str | None = None
    started_timestamp: int | None = None


class ListMessageMoveTasksResult(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """The tasks, latest first."""

    results: (
        Annotated[list[ListMessageMoveTasksResultEntry], Meta(extra={"name": "ListMessageMoveTasksResultEntry"})] | None
    ) = None
