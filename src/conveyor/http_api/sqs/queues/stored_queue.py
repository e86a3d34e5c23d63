"""What the metadata holds of a queue: the settings of its topic, the policy and the annotations of its subscription.

    attribute                       is held in
    VisibilityTimeout               the policy: visibility_timeout_ms
    RedrivePolicy                   the policy: max_deliveries (0 without one), dead_letter_topic
    MessageRetentionPeriod          the topic: retention.ms
    all others, and tags            annotations, `sqs.attribute.DelaySeconds` and `sqs.tag.team`

Attributes that were never set have SQS's defaults, also for a topic and a subscription that were made by REST.
"""

from collections.abc import Mapping

from conveyor.cluster.image import TopicImage
from conveyor.http_api.sqs.queues.queue_attribute_rules import REDRIVE, RETENTION, RULES, VISIBILITY_TIMEOUT
from conveyor.http_api.sqs.queues.queue_names import is_fifo_name
from conveyor.http_api.sqs.queues.redrive_policy import (
    RedrivePolicy,
    format_redrive_policy,
    parse_redrive_policy,
    shown_redrive_policy,
)
from conveyor.http_api.sqs.sqs_errors import SqsError
from conveyor.queues.subscription.policy import Subscription

CREATED_MS, MODIFIED_MS, PURGED_MS = "sqs.created-ms", "sqs.modified-ms", "sqs.purged-ms"
"""Annotations. The first one also says that the topic was made for the queue."""
PURGES = "sqs.purges"
"""The annotation of a FIFO queue that counts its purges; see `fifo_ids`."""

_ATTRIBUTE, _TAG = "sqs.attribute.", "sqs.tag."
_RETENTION_MS = "retention.ms"
_IN_POLICY = (VISIBILITY_TIMEOUT, RETENTION)


def attribute_of(queue: Subscription, name: str) -> str:
    """Return an attribute that annotations hold; the default if it was never set, empty if it has none."""
    return queue.annotations.get(_ATTRIBUTE + name) or RULES[name].default or ""


def shown_attributes(queue: Subscription, topic: TopicImage | None, region: str) -> dict[str, str]:
    """Return all attributes that were set or have a default."""
    shown = {name: value for name in RULES if (value := _value(queue, topic, region, name))}
    for name, annotation in (("CreatedTimestamp", CREATED_MS), ("LastModifiedTimestamp", MODIFIED_MS)):
        if annotation in queue.annotations:
            shown[name] = str(int(queue.annotations[annotation]) // 1000)
    return shown


def _value(queue: Subscription, topic: TopicImage | None, region: str, name: str) -> str:
    if RULES[name].is_fifos and not is_fifo_name(queue.name):
        return ""
    if name == VISIBILITY_TIMEOUT:
        return str(queue.policy.visibility_timeout_ms // 1000)
    if name == RETENTION and topic is not None and int(topic.config.get(_RETENTION_MS, "-1")) >= 0:
        return str(int(topic.config[_RETENTION_MS]) // 1000)
    return _redrive(queue, region) if name == REDRIVE else attribute_of(queue, name)


def _redrive(queue: Subscription, region: str) -> str:
    """Return the text that was set, unless the policy of the subscription is another one by now."""
    policy = redrive_policy_of(queue)
    if policy is None:
        return ""
    text = queue.annotations.get(_ATTRIBUTE + REDRIVE, "")
    try:
        is_current = parse_redrive_policy(text) == policy
    except SqsError:
        is_current = False
    return shown_redrive_policy(text) if is_current else format_redrive_policy(region, policy)


def redrive_policy_of(queue: Subscription) -> RedrivePolicy | None:
    """Return the redrive policy in force; None without a limit of deliveries."""
    policy = queue.policy
    return RedrivePolicy(policy.dead_letter_topic, policy.max_deliveries) if policy.max_deliveries else None


def policy_changes(given: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of the subscription's policy that attributes set. Raises SqsError."""
    changes: dict[str, object] = {}
    if VISIBILITY_TIMEOUT in given:
        changes["visibility_timeout_ms"] = 1000 * int(given[VISIBILITY_TIMEOUT])
    if REDRIVE in given:
        redrive = parse_redrive_policy(given[REDRIVE])
        changes["max_deliveries"] = 0 if redrive is None else redrive.max_receive_count
        if redrive is not None:
            changes["dead_letter_topic"] = redrive.dead_letter_queue
    return changes


def topic_changes(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the topic that attributes set."""
    return {_RETENTION_MS: str(1000 * int(given[RETENTION]))} if RETENTION in given else {}


def annotation_changes(given: Mapping[str, str]) -> dict[str, str | None]:
    """Return the annotations that attributes set, with None for those that an empty value removes."""
    return {_ATTRIBUTE + name: value or None for name, value in given.items() if name not in _IN_POLICY}


def tags_of(queue: Subscription) -> dict[str, str]:
    return {name.removeprefix(_TAG): value for name, value in queue.annotations.items() if name.startswith(_TAG)}


def tag_changes(tags: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the annotations of tags; None removes one."""
    return {_TAG + name: value for name, value in tags.items()}
