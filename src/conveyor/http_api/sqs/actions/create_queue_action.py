"""CreateQueue: a topic and a subscription of one name, both or none."""

import logging
from collections.abc import Mapping
from contextlib import suppress

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.image import is_internal
from conveyor.cluster.topic_creation import BROKER_DEFAULT, TopicRequest
from conveyor.cluster.topic_decisions import owned_by_broker
from conveyor.http_api.sqs.actions.sqs_action import ActionCall
from conveyor.http_api.sqs.protocols.queue_operations import CreateQueueRequest, CreateQueueResult
from conveyor.http_api.sqs.queues.queue_attribute_rules import (
    FIFO,
    LIMIT,
    REDRIVE,
    RETENTION,
    RULES,
    SCOPE,
    check_attributes,
    invalid_value,
    read_attributes,
    unknown_attribute,
)
from conveyor.http_api.sqs.queues.queue_names import check_queue_name, existing_queue
from conveyor.http_api.sqs.queues.queue_tags import check_tags
from conveyor.http_api.sqs.queues.redrive_policy import check_target, parse_redrive_policy
from conveyor.http_api.sqs.queues.stored_queue import (
    CREATED_MS,
    MODIFIED_MS,
    annotation_changes,
    policy_changes,
    shown_attributes,
    tag_changes,
    topic_changes,
)
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition, Subscription

log = logging.getLogger(__name__)

_START = StartPosition(kind="earliest")
"""A queue on a topic that is there already, such as that of dead letters, has its messages."""
_TOPIC = {
    "cleanup.policy": "delete,acknowledged",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(2 << 20),
}
"""SQS's largest message with its attributes fits into a batch."""
_FIFO_TOPIC = {"dedup.window.ms": "300000"}
_FIFO_POLICY = {"ordering": "key", "max_in_flight_per_key": 10}
"""One ReceiveMessage may have only messages of one group."""


async def create_queue(call: ActionCall[CreateQueueRequest]) -> CreateQueueResult:
    """Create a queue. One that is there with the same attributes is left as it is."""
    name, given = call.members.queue_name, read_attributes(call.members.attributes)
    tags = call.members.tags or {}
    is_fifo = given.get(FIFO) == "true"
    if FIFO in given and not is_fifo:
        raise unknown_attribute(FIFO) if given[FIFO] == "false" else invalid_value(FIFO)
    check_queue_name(name, is_fifo=is_fifo)
    if is_internal(name):
        raise owned_by_broker(name)
    check_attributes(given, is_fifo=is_fifo)
    check_fifo_limit(given)
    check_tags(name, tags)
    check_redrive(call.broker, name, given)
    if not _is_there(call.broker, name):
        await _create(call, name, given, tags)
    _check_same(call, existing_queue(call.broker, name), given)
    return CreateQueueResult(queue_url=call.url_of(name))


def check_redrive(broker: BrokerNode, name: str, given: Mapping[str, str]) -> None:
    """Raise SqsError if the dead-letter queue that attributes name cannot be one."""
    policy = parse_redrive_policy(given.get(REDRIVE, ""))
    if policy is not None:
        exists = _is_there(broker, policy.dead_letter_queue)
        check_target(given[REDRIVE], name, policy, exists=exists)


def check_fifo_limit(given: Mapping[str, str]) -> None:
    """Raise SqsError: a limit for each message group needs de-duplication within it."""
    if given.get(LIMIT) == "perMessageGroupId" and given.get(SCOPE, "messageGroup") != "messageGroup":
        raise invalid_value(LIMIT)


def has_many_lanes(given: Mapping[str, str]) -> bool:
    """Return whether the message groups of a FIFO queue may be in different partitions."""
    return given.get(SCOPE) == "messageGroup" and given.get(LIMIT) == "perMessageGroupId"


def _is_there(broker: BrokerNode, name: str) -> bool:
    with suppress(RequestError):
        existing_queue(broker, name)
        return True
    return False


async def _create(
    call: ActionCall[CreateQueueRequest], name: str, given: Mapping[str, str], tags: Mapping[str, str]
) -> None:
    """Create the topic and the subscription. A topic whose subscription cannot be created is removed again."""
    broker, caller = call.broker, call.http.caller
    is_fifo = FIFO in given
    is_made = name not in broker.metadata.image.topics and await _create_topic(call, name, given)
    now = str(broker.clock.now_ms())
    annotations = {MODIFIED_MS: now, **({CREATED_MS: now} if is_made else {})}
    annotations |= {key: value for key, value in annotation_changes(given).items() if value is not None}
    annotations |= {key: value for key, value in tag_changes(tags).items() if value is not None}
    policy = {"max_deliveries": 0, **(_FIFO_POLICY if is_fifo else {}), **policy_changes(given)}
    try:
        await broker.queues.lifecycle.create(caller, name, name, _START, policy, annotations=annotations)
    except RequestError as error:
        if error.kind is ErrorKind.SUBSCRIPTION_ALREADY_EXISTS and _is_there(broker, name):
            return
        if is_made and not broker.cluster.subscriptions.all(name):
            log.warning("queue not created name=%s: %s", name, error.message)
            with suppress(RequestError):
                await broker.topics.delete(caller, name)
        raise


async def _create_topic(call: ActionCall[CreateQueueRequest], name: str, given: Mapping[str, str]) -> bool:
    """Return whether this request has created the topic."""
    one_lane = FIFO in given and not has_many_lanes(given)
    retention = {RETENTION: RULES[RETENTION].default or "", **given}
    config = {**_TOPIC, **(_FIFO_TOPIC if FIFO in given else {}), **topic_changes(retention)}
    request = TopicRequest(name=name, partitions=1 if one_lane else BROKER_DEFAULT, config=config)
    topics, meter = call.broker.topics, call.http.exchange.meter
    if meter is not None:
        meter.mutated(topics.check(request).partition_count)
    try:
        await topics.create(call.http.caller, request)
    except RequestError as error:
        if error.kind is ErrorKind.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True


def _check_same(call: ActionCall[CreateQueueRequest], queue: Subscription, given: Mapping[str, str]) -> None:
    """Raise SqsError if the queue has another value of an attribute that the request gives."""
    topic = call.broker.metadata.image.topics.get(queue.topic)
    shown = shown_attributes(queue, topic, call.settings.region)
    for name, value in given.items():
        current = shown.get(name, "")
        is_same = value == current
        if name == REDRIVE and not is_same and current:
            is_same = parse_redrive_policy(value) == parse_redrive_policy(current)
        if not is_same:
            raise SqsError(
                SqsErrorKind.QUEUE_NAME_EXISTS,
                f"A queue already exists with the same name and a different value for attribute {name}",
            )
