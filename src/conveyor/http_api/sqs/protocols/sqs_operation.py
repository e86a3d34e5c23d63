"""The table of operations: the types of an operation's request and of its answer drive both codecs."""

from dataclasses import dataclass

from msgspec import Struct

from conveyor.http_api.sqs.protocols import message_operations as messages
from conveyor.http_api.sqs.protocols import move_task_operations as tasks
from conveyor.http_api.sqs.protocols import queue_operations as queues


@dataclass(frozen=True, slots=True)
class SqsOperation:
    """An operation. result: None if its answer has no members."""

    name: str
    request: type[Struct]
    result: type[Struct] | None = None


_ALL = (
    SqsOperation("AddPermission", queues.AddPermissionRequest),
    SqsOperation("CancelMessageMoveTask", tasks.CancelMessageMoveTaskRequest, tasks.CancelMessageMoveTaskResult),
    SqsOperation("ChangeMessageVisibility", messages.ChangeMessageVisibilityRequest),
    SqsOperation(
        "ChangeMessageVisibilityBatch",
        messages.ChangeMessageVisibilityBatchRequest,
        messages.ChangeMessageVisibilityBatchResult,
    ),
    SqsOperation("CreateQueue", queues.CreateQueueRequest, queues.CreateQueueResult),
    SqsOperation("DeleteMessage", messages.DeleteMessageRequest),
    SqsOperation("DeleteMessageBatch", messages.DeleteMessageBatchRequest, messages.DeleteMessageBatchResult),
    SqsOperation("DeleteQueue", queues.DeleteQueueRequest),
    SqsOperation("GetQueueAttributes", queues.GetQueueAttributesRequest, queues.GetQueueAttributesResult),
    SqsOperation("GetQueueUrl", queues.GetQueueUrlRequest, queues.GetQueueUrlResult),
    SqsOperation(
        "ListDeadLetterSourceQueues",
        queues.ListDeadLetterSourceQueuesRequest,
        queues.ListDeadLetterSourceQueuesResult,
    ),
    SqsOperation("ListMessageMoveTasks", tasks.ListMessageMoveTasksRequest, tasks.ListMessageMoveTasksResult),
    SqsOperation("ListQueueTags", queues.ListQueueTagsRequest, queues.ListQueueTagsResult),
    SqsOperation("ListQueues", queues.ListQueuesRequest, queues.ListQueuesResult),
    SqsOperation("PurgeQueue", queues.PurgeQueueRequest),
    SqsOperation("ReceiveMessage", messages.ReceiveMessageRequest, messages.ReceiveMessageResult),
    SqsOperation("RemovePermission", queues.RemovePermissionRequest),
    SqsOperation("SendMessage", messages.SendMessageRequest, messages.SendMessageResult),
    SqsOperation("SendMessageBatch", messages.SendMessageBatchRequest, messages.SendMessageBatchResult),
    SqsOperation("SetQueueAttributes", queues.SetQueueAttributesRequest),
    SqsOperation("StartMessageMoveTask", tasks.StartMessageMoveTaskRequest, tasks.StartMessageMoveTaskResult),
    SqsOperation("TagQueue", queues.TagQueueRequest),
    SqsOperation("UntagQueue", queues.UntagQueueRequest),
)

OPERATIONS: dict[str, SqsOperation] = {operation.name: operation for operation in _ALL}
