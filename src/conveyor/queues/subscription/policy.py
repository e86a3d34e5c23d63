"""The definition of a subscription: its name, topic, start position and delivery policy. Pure data.

As a document (in REST, and in the cluster's metadata) a policy has the fields of `Policy`; `retry` is an object of
`base_ms`, `factor` and `cap_ms`. The target of a push is beside the policy, so that a broker of an older version, which
does not know it, reads the policy.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.push.push_target import PushTarget, decoded_target

MAX_VISIBILITY_MS = 12 * 3_600_000
MAX_NAME_CHARACTERS = 200
MAX_IN_FLIGHT_PER_KEY = 1_000
"""As many messages as one request leases."""
MAX_HEADER_CHARACTERS = 200
MAX_ANNOTATIONS_BYTES = 64 << 10
"""Of all names and values of a subscription's annotations, in UTF-8: all brokers hold the metadata in memory."""
NO_ANNOTATIONS: Mapping[str, str] = MappingProxyType({})

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_MAX_TOPIC_CHARACTERS = 249
_MAX_FACTOR = 100
_FOREVER_MS = 365 * 86_400_000
_CHOICES = {
    "delivery": ("at_least_once", "at_most_once", "exactly_once"),
    "ordering": ("none", "key"),
    "on_filter_error": ("deliver", "skip", "dead_letter"),
    "on_expiry": ("drop", "dead_letter"),
}
_RANGES = {
    "visibility_timeout_ms": (0, MAX_VISIBILITY_MS),
    "max_deliveries": (0, 1_000_000),
    "priority_ageing_ms": (0, _FOREVER_MS),
    "max_in_flight": (1, 1_000_000),
    "max_in_flight_per_key": (1, MAX_IN_FLIGHT_PER_KEY),
    "base_ms": (0, _FOREVER_MS),
    "cap_ms": (0, _FOREVER_MS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with full jitter: the n-th delay is between 0 and min(cap, base * factor ** (n - 1))."""

    base_ms: int = 1_000
    factor: float = 2.0
    cap_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """The start of a subscription: `earliest`, `latest`, or the first message with at least a `timestamp`."""

    kind: str = "latest"
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The delivery of a subscription's messages, and the handling of failures.

    filter: a CEL expression; messages that do not match count as settled.
    on_filter_error: the handling of a message on which the filter fails.
    max_deliveries: 0 for no limit.
    fair_by: the header whose values take turns in delivery.
    priority_ageing_ms: the waiting time after which a message's priority rises by one; 0 for never.
    max_in_flight: the most concurrent leases in each partition.
    max_in_flight_per_key: with key order, the most messages of one key that one lease command takes.
    """

    filter: str | None = None
    on_filter_error: str = "deliver"
    delivery: str = "at_least_once"
    ordering: str = "none"
    visibility_timeout_ms: int = 30_000
    max_deliveries: int = 5
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    dead_letter_topic: str
    on_expiry: str = "drop"
    priority_ageing_ms: int = 0
    fair_by: str | None = None
    max_in_flight: int = 100_000
    max_in_flight_per_key: int = 1
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A subscription to a topic. `partition_count`: the partitions at its creation; later partitions start at
    offset 0. annotations: what a door keeps about it, by name. They have no effect on deliveries. push: where the
    broker itself delivers the messages; None if clients lease them all.
    """

    id: UUID
    name: str
    topic: str
    topic_id: UUID
    start: StartPosition
    partition_count: int
    policy: Policy
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    push: PushTarget | None = None


def check_name(name: str) -> None:
    """Raise RequestError (INVALID_SUBSCRIPTION) if a subscription name is not valid."""
    if not _is_name(name, MAX_NAME_CHARACTERS):
        raise _invalid(
            f"subscription name {name[:40]!r} is not valid: use 1 to {MAX_NAME_CHARACTERS} letters, digits, '.', '_'"
            " and '-'"
        )


def default_policy(topic: str, max_in_flight: int) -> Policy:
    """Return the policy of a subscription that sets nothing. max_in_flight: the topic's `queue.max.in.flight`."""
    return Policy(dead_letter_topic=f"{topic}.dlq", max_in_flight=max_in_flight)


def policy_from_document(topic: str, document: Mapping[str, object], base: Policy) -> Policy:
    """Return `base` with the document's fields replaced. Raises RequestError."""
    field_names = {policy_field.name for policy_field in fields(Policy)}
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name not in field_names:
            raise _invalid(f"unknown field '{name}': use one of {', '.join(sorted(field_names))}")
        values[name] = _retry(value, base.retry) if name == "retry" else _checked(name, value)
    policy = replace(base, **values)
    if policy.retry.cap_ms < policy.retry.base_ms:
        raise _invalid(f"retry.cap_ms ({policy.retry.cap_ms}) is below retry.base_ms ({policy.retry.base_ms})")
    if policy.dead_letter_topic == topic:
        raise _invalid(f"dead_letter_topic is the topic itself, '{topic}': choose another")
    if policy.ordering == "key" and policy.fair_by is not None:
        raise _invalid("ordering 'key' and fair_by exclude each other: choose one")
    if policy.ordering != "key" and policy.max_in_flight_per_key > 1:
        raise _invalid("max_in_flight_per_key above 1 has an effect with ordering 'key' only: set both")
    return policy


def changed_annotations(annotations: Mapping[str, str], changes: Mapping[str, str | None]) -> Mapping[str, str]:
    """Return annotations with some set, or removed for None. Raises RequestError (POLICY_VIOLATION) if they are too
    large.
    """
    kept = {name: value for name, value in annotations.items() if name not in changes}
    made = kept | {name: value for name, value in changes.items() if value is not None}
    size = sum(len(name.encode()) + len(value.encode()) for name, value in made.items())
    if size > MAX_ANNOTATIONS_BYTES:
        reason = f"the annotations of a subscription would have {size} bytes: at most {MAX_ANNOTATIONS_BYTES}"
        raise RequestError(ErrorKind.POLICY_VIOLATION, reason)
    return made


def policy_document(policy: Policy) -> dict[str, object]:
    return asdict(policy)


def delivery_order(policy: Policy) -> tuple[object, ...]:
    """Return the policy fields that the delivery index depends on."""
    return policy.ordering, policy.fair_by, policy.priority_ageing_ms


def encode_subscription(subscription: Subscription) -> str:
    """Return the subscription's document in the metadata."""
    document = asdict(subscription) | {"id": str(subscription.id), "topic_id": str(subscription.topic_id)}
    if not subscription.annotations:
        del document["annotations"]
    return json.dumps(document)


def decode_subscription(content: str) -> Subscription:
    """Decode a document of `encode_subscription`."""
    document = json.loads(content)
    policy = document["policy"]
    return Subscription(
        id=UUID(document["id"]),
        name=document["name"],
        topic=document["topic"],
        topic_id=UUID(document["topic_id"]),
        start=StartPosition(**document["start"]),
        partition_count=document["partition_count"],
        policy=Policy(**policy | {"retry": RetryPolicy(**policy["retry"])}),
        annotations=document.get("annotations", {}),
        push=decoded_target(push) if (push := document.get("push")) is not None else None,
    )


def _retry(value: object, base: RetryPolicy) -> RetryPolicy:
    field_names = {retry_field.name for retry_field in fields(RetryPolicy)}
    if not isinstance(value, Mapping) or not value.keys() <= field_names:
        raise _invalid(f"retry takes an object of {', '.join(sorted(field_names))}")
    values = {name: _checked(name, retry_value) for name, retry_value in value.items()}
    return replace(base, **values)


def _checked(name: str, value: object) -> Any:
    is_valid, expected = _rule(name, value)
    if not is_valid:
        raise _invalid(f"{name} must be {expected}, not {value!r}")
    return float(value) if name == "factor" and isinstance(value, int) else value


def _rule(name: str, value: object) -> tuple[bool, str]:
    """Return whether a value is valid for a field, and a description of valid values."""
    if name in _CHOICES:
        return value in _CHOICES[name], f"one of {', '.join(_CHOICES[name])}"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if name in _RANGES:
        minimum, maximum = _RANGES[name]
        return is_number and minimum <= cast("int", value) <= maximum, f"a whole number from {minimum} to {maximum}"
    if name == "factor":
        is_number = is_number or isinstance(value, float)
        return is_number and 1 <= cast("float", value) <= _MAX_FACTOR, f"a number from 1 to {_MAX_FACTOR}"
    if name == "paused":
        return isinstance(value, bool), "true or false"
    if name == "filter":
        return value is None or (isinstance(value, str) and value != ""), "a text, or null for none"
    if name == "fair_by":
        is_header = isinstance(value, str) and 1 <= len(value) <= MAX_HEADER_CHARACTERS
        return value is None or is_header, f"a text of 1 to {MAX_HEADER_CHARACTERS} characters, or null for none"
    return isinstance(value, str) and _is_name(value, _MAX_TOPIC_CHARACTERS), "the name of a topic"


def _is_name(text: str, max_characters: int) -> bool:
    return _NAME.fullmatch(text) is not None and len(text) <= max_characters and text not in (".", "..")


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_SUBSCRIPTION, message)
