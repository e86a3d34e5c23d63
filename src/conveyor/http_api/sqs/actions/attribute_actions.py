"""Operations on what the metadata holds of a queue: attributes and tags."""

from collections.abc import Mapping, Sequence

from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.http_api.sqs.actions.create_queue_action import check_fifo_limit, check_redrive
from conveyor.http_api.sqs.actions.sqs_action import ActionCall
from conveyor.http_api.sqs.protocols.queue_operations import (
    GetQueueAttributesRequest,
    GetQueueAttributesResult,
    ListQueueTagsRequest,
    ListQueueTagsResult,
    SetQueueAttributesRequest,
    TagQueueRequest,
    UntagQueueRequest,
)
from conveyor.http_api.sqs.queues.queue_attribute_rules import (
    FIFO,
    KMS_KEY,
    KMS_REUSE,
    SHOWN,
    SQS_KEY,
    check_attributes,
    invalid_value,
    read_attributes,
    unknown_attribute,
)
from conveyor.http_api.sqs.queues.queue_names import is_fifo_name, queue_arn
from conveyor.http_api.sqs.queues.queue_tags import check_tag_count, check_tags
from conveyor.http_api.sqs.queues.stored_queue import (
    MODIFIED_MS,
    annotation_changes,
    policy_changes,
    shown_attributes,
    tag_changes,
    tags_of,
    topic_changes,
)
from conveyor.http_api.sqs.sqs_errors import invalid_parameter, missing_parameter
from conveyor.queues.subscription.policy import Subscription

_ALL = "All"
_VISIBLE, _IN_FLIGHT, _DELAYED = (f"ApproximateNumberOfMessages{state}" for state in ("", "NotVisible", "Delayed"))


async def get_queue_attributes(call: ActionCall[GetQueueAttributesRequest]) -> GetQueueAttributesResult:
    """Return the attributes that a request names, or all."""
    queue, names = call.queue(), call.members.attribute_names or []
    _check_names(names)
    topic = call.broker.metadata.image.topics.get(queue.topic)
    shown = shown_attributes(queue, topic, call.settings.region)
    shown["QueueArn"] = queue_arn(call.settings.region, queue.name)
    if KMS_KEY in shown:
        shown[SQS_KEY] = "false"
    else:
        shown.pop(KMS_REUSE, None)
    is_all = _ALL in names
    if is_all or any(name in (_VISIBLE, _IN_FLIGHT, _DELAYED) for name in names):
        shown |= await _counts(call, queue)
    asked = {name: value for name, value in shown.items() if is_all or name in names}
    return GetQueueAttributesResult(attributes=asked or None)


async def set_queue_attributes(call: ActionCall[SetQueueAttributesRequest]) -> None:
    """Change attributes. An empty value removes one of those that need none."""
    queue, given, broker = call.queue(), read_attributes(call.members.attributes), call.broker
    if not given:
        raise missing_parameter("Attribute.Name")
    if is_fifo_name(queue.name) and given.pop(FIFO, "true") != "true":
        raise invalid_value(FIFO, "Modifying queue type is not supported.")
    check_attributes(given, is_fifo=is_fifo_name(queue.name))
    check_fifo_limit(given)
    check_redrive(broker, queue.name, given)
    await _change(call, annotation_changes(given), policy_changes(given))
    config = [
        ConfigChange(name=name, operation=Operation.SET, value=value) for name, value in topic_changes(given).items()
    ]
    if config:
        await broker.topics.change_config(call.http.caller, queue.topic, config)


async def tag_queue(call: ActionCall[TagQueueRequest]) -> None:
    """Set tags."""
    tags = call.members.tags
    if not tags:
        raise missing_parameter("Tags")
    queue = call.queue()
    check_tags(queue.name, tags)
    check_tag_count(queue.name, len({**tags_of(queue), **tags}))
    await _change(call, tag_changes(tags), {})


async def untag_queue(call: ActionCall[UntagQueueRequest]) -> None:
    """Remove tags."""
    keys = call.members.tag_keys
    if not keys:
        raise invalid_parameter("Tag keys must be between 1 and 128 characters in length.")
    await _change(call, tag_changes(dict.fromkeys(keys)), {})


async def list_queue_tags(call: ActionCall[ListQueueTagsRequest]) -> ListQueueTagsResult:
    """Return the tags."""
    return ListQueueTagsResult(tags=tags_of(call.queue()) or None)


async def _change(
    call: ActionCall[SetQueueAttributesRequest] | ActionCall[TagQueueRequest] | ActionCall[UntagQueueRequest],
    annotations: Mapping[str, str | None],
    policy: Mapping[str, object],
) -> None:
    queue = call.queue()
    changes = {**annotations, MODIFIED_MS: str(call.broker.clock.now_ms())}
    await call.broker.queues.lifecycle.change(call.http.caller, queue.name, policy, annotations=changes)


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name != _ALL and name not in SHOWN:
            raise unknown_attribute(name)


async def _counts(call: ActionCall[GetQueueAttributesRequest], queue: Subscription) -> dict[str, str]:
    """Return how many messages there are by state. Those that wait behind another of their group are visible."""
    stats = await call.broker.queues.statistics.stats(call.http.caller, queue.name)
    visible = max(0, stats.unsettled - stats.in_flight - stats.delayed - stats.pending)
    return {_VISIBLE: str(visible), _IN_FLIGHT: str(stats.in_flight), _DELAYED: str(stats.delayed)}
