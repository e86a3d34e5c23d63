"""What a subscription is: a name, a topic, where it started, and how its messages are handed out. Pure data.

As a document (REST, and the metadata tree, `/subscriptions/<name>`) a policy has the fields of `Policy`, with `retry`
as an object of `base_ms`, `factor` and `cap_ms`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, cast
from uuid import UUID

from conveyor.kernel.errors import ErrorKind, RequestError

MAX_VISIBILITY_MS = 12 * 3_600_000
MAX_NAME_CHARACTERS = 200

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
    "base_ms": (0, _FOREVER_MS),
    "cap_ms": (0, _FOREVER_MS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Exponential backoff with full jitter: the n-th wait lies between 0 and min(cap, base * factor ** (n - 1))."""

    base_ms: int = 1_000
    factor: float = 2.0
    cap_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a subscription begins: `earliest`, `latest`, or with the first message not older than a `timestamp`."""

    kind: str = "latest"
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a subscription's messages are handed out, and what becomes of those that fail.

    filter: a CEL expression; other messages count as settled. on_filter_error: what becomes of a message on which it
    fails. max_deliveries: 0 for no limit. fair_by: name of the header by whose value messages take turns.
    priority_ageing_ms: after so long a message counts one priority higher; 0 for never. max_in_flight: leases at once,
    in each partition.
    """

    filter: str | None = None
    on_filter_error: str = "deliver"
    delivery: str = "at_least_once"
    ordering: str = "none"
    visibility_timeout_ms: int = 30_000
    max_deliveries: int = 5
    retry: Retry = field(default_factory=Retry)
    dead_letter_topic: str
    on_expiry: str = "drop"
    priority_ageing_ms: int = 0
    fair_by: str | None = None
    max_in_flight: int = 100_000
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A share group on a topic. `partition_count`: partitions there were when it was made; later ones start at 0."""

    id: UUID
    name: str
    topic: str
    topic_id: UUID
    start: Start
    partition_count: int
    policy: Policy


def check_name(name: str) -> None:
    """Raises RequestError (INVALID_SUBSCRIPTION)."""
    if not _is_name(name, MAX_NAME_CHARACTERS):
        raise _invalid(
            f"subscription name {name[:40]!r} is not valid: use 1 to {MAX_NAME_CHARACTERS} of letters, digits, '.', '_'"
            " and '-'"
        )


def default_policy(topic: str, max_in_flight: int) -> Policy:
    """The policy of a subscription that asks for nothing. max_in_flight: the topic's `queue.max.in.flight`."""
    return Policy(dead_letter_topic=f"{topic}.dlq", max_in_flight=max_in_flight)


def policy_from_document(topic: str, document: Mapping[str, object], base: Policy) -> Policy:
    """A policy with the document's fields, and those of `base` where it has none. Raises RequestError."""
    known = {each.name for each in fields(Policy)}
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            raise _invalid(f"unknown field '{name}': known are {', '.join(sorted(known))}")
        values[name] = _retry(value, base.retry) if name == "retry" else _checked(name, value)
    policy = replace(base, **values)
    if policy.retry.cap_ms < policy.retry.base_ms:
        raise _invalid(f"retry.cap_ms ({policy.retry.cap_ms}) is below retry.base_ms ({policy.retry.base_ms})")
    if policy.dead_letter_topic == topic:
        raise _invalid(f"dead_letter_topic is the topic itself, '{topic}': choose another")
    if policy.ordering == "key" and policy.fair_by is not None:
        raise _invalid("ordering 'key' and fair_by exclude each other: choose one")
    return policy


def policy_document(policy: Policy) -> dict[str, object]:
    """The policy as JSON takes it."""
    return asdict(policy)


def encode_subscription(subscription: Subscription) -> bytes:
    """The node's content in the metadata tree."""
    document = asdict(subscription) | {"id": str(subscription.id), "topic_id": str(subscription.topic_id)}
    return json.dumps(document).encode()


def decode_subscription(content: bytes) -> Subscription:
    document = json.loads(content)
    policy = document["policy"]
    return Subscription(
        id=UUID(document["id"]),
        name=document["name"],
        topic=document["topic"],
        topic_id=UUID(document["topic_id"]),
        start=Start(**document["start"]),
        partition_count=document["partition_count"],
        policy=Policy(**policy | {"retry": Retry(**policy["retry"])}),
    )


def _retry(value: object, base: Retry) -> Retry:
    known = {each.name for each in fields(Retry)}
    if not isinstance(value, Mapping) or not value.keys() <= known:
        raise _invalid(f"retry takes an object of {', '.join(sorted(known))}")
    values = {name: _checked(name, each) for name, each in value.items()}
    return replace(base, **values)


def _checked(name: str, value: object) -> Any:
    is_sound, right = _rule(name, value)
    if not is_sound:
        raise _invalid(f"{name} is {right}, not {value!r}")
    return float(value) if name == "factor" and isinstance(value, int) else value


def _rule(name: str, value: object) -> tuple[bool, str]:
    """Whether a value is right for a field, and what is."""
    if name in _CHOICES:
        return value in _CHOICES[name], f"one of {', '.join(_CHOICES[name])}"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if name in _RANGES:
        low, high = _RANGES[name]
        return is_number and low <= cast("int", value) <= high, f"a whole number from {low} to {high}"
    if name == "factor":
        is_number = is_number or isinstance(value, float)
        return is_number and 1 <= cast("float", value) <= _MAX_FACTOR, f"a number from 1 to {_MAX_FACTOR}"
    if name == "paused":
        return isinstance(value, bool), "true or false"
    if name in ("filter", "fair_by"):
        return value is None or (isinstance(value, str) and value != ""), "a text, or null for none"
    return isinstance(value, str) and _is_name(value, _MAX_TOPIC_CHARACTERS), "the name of a topic"


def _is_name(text: str, max_characters: int) -> bool:
    return _NAME.fullmatch(text) is not None and len(text) <= max_characters and text not in (".", "..")


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_SUBSCRIPTION, message)
