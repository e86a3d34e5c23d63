"""Subscriptions: create, list, show, change, delete; by topic and name, or by name alone."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, convert, to_builtins

from conveyor.broker.metadata.subscriptions import ChangePush
from conveyor.broker.queues.pushing.push_changes import PushChange
from conveyor.http.endpoints.endpoint import Endpoint, NoQuery
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.requests.times_and_positions import SubscriptionStart, format_start
from conveyor.http_api.rest.push_document import (
    PushDocument,
    PushRequestBody,
    PushStatusDocument,
    push_change,
    show_push,
    show_push_status,
)
from conveyor.http_api.rest.topic_endpoints import TopicName
from conveyor.kernel.access.acl import ResourceType
from conveyor.kernel.access.declared_access import ALTER_CONFIGS, DELETE, DESCRIBE, READ, WRITE, group, topic
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.histogram import quantile
from conveyor.queues.delivery.ack_delays import DELAY_BOUNDS_MS, AckDelays
from conveyor.queues.push.push_target import PushTarget
from conveyor.queues.subscription.policy import (
    MAX_HEADER_CHARACTERS,
    MAX_IN_FLIGHT_PER_KEY,
    MAX_NAME_CHARACTERS,
    MAX_VISIBILITY_MS,
    StartPosition,
    Subscription,
    policy_document,
)

_YEAR_MS = 365 * 86_400_000
_Milliseconds = Annotated[int, Meta(ge=0, le=_YEAR_MS)]
SubscriptionName = Annotated[
    str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS, pattern=r"^[a-zA-Z0-9._-]+$", examples=["billing"])
]


class RetryChange(Struct, forbid_unknown_fields=True):
    """Exponential backoff with full jitter: the n-th wait is between 0 and min(cap_ms, base_ms * factor ** (n - 1))."""

    base_ms: _Milliseconds | UnsetType = UNSET
    factor: Annotated[float, Meta(ge=1, le=100)] | UnsetType = UNSET
    cap_ms: _Milliseconds | UnsetType = UNSET


class PolicyChange(Struct, forbid_unknown_fields=True, kw_only=True):
    """Changes of a subscription's policy. Fields that are left out keep their values.

    filter: a CEL expression. max_deliveries: 0 for no limit. fair_by: a header; messages with different values of it
    are delivered in turn. max_in_flight_per_key: the most messages of one key that one request leases, with ordering
    `key`.
    """

    filter: Annotated[str, Meta(min_length=1)] | UnsetType | None = UNSET
    on_filter_error: Literal["deliver", "skip", "dead_letter"] | UnsetType = UNSET
    delivery: Literal["at_least_once", "at_most_once", "exactly_once"] | UnsetType = UNSET
    ordering: Literal["none", "key"] | UnsetType = UNSET
    visibility_timeout_ms: Annotated[int, Meta(ge=0, le=MAX_VISIBILITY_MS)] | UnsetType = UNSET
    max_deliveries: Annotated[int, Meta(ge=0, le=1_000_000)] | UnsetType = UNSET
    retry: RetryChange | UnsetType = UNSET
    dead_letter_topic: TopicName | UnsetType = UNSET
    on_expiry: Literal["drop", "dead_letter"] | UnsetType = UNSET
    priority_ageing_ms: _Milliseconds | UnsetType = UNSET
    fair_by: Annotated[str, Meta(min_length=1, max_length=MAX_HEADER_CHARACTERS)] | UnsetType | None = UNSET
    max_in_flight: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    max_in_flight_per_key: Annotated[int, Meta(ge=1, le=MAX_IN_FLIGHT_PER_KEY)] | UnsetType = UNSET
    paused: bool | UnsetType = UNSET


class SubscriptionChange(PolicyChange, kw_only=True):
    """Changes of a subscription. push: null ends it. Who gives a target needs READ on the subscription and its topic,
    and becomes the owner of the push.
    """

    push: PushRequestBody | UnsetType | None = UNSET


class NewSubscription(PolicyChange, kw_only=True):
    """A new subscription. start: default latest. push: where the broker delivers the messages by itself."""

    name: SubscriptionName
    start: SubscriptionStart | None = None
    push: PushRequestBody | None = None


class RetryDocument(Struct):
    """See `RetryChange`."""

    base_ms: int
    factor: float
    cap_ms: int


class SubscriptionDocument(Struct, kw_only=True):
    """A subscription. start: earliest, latest, or a time by RFC 3339."""

    name: str
    topic: str
    id: str
    start: str
    filter: str | None
    on_filter_error: str
    delivery: str
    ordering: str
    visibility_timeout_ms: int
    max_deliveries: int
    retry: RetryDocument
    dead_letter_topic: str
    on_expiry: str
    priority_ageing_ms: int
    fair_by: str | None
    max_in_flight: int
    max_in_flight_per_key: int
    paused: bool
    push: PushDocument | None


class DelayBucket(Struct):
    """The messages with a delay above `up_to_ms` of the bucket before, and at most this one; null for no limit."""

    up_to_ms: int | None
    count: int


class AckDelay(Struct):
    """The time from publish to ack of the messages that were acknowledged since the broker started.

    p50_ms, p99_ms: estimates of percentiles from the buckets; null without messages.
    """

    count: int
    sum_ms: float
    p50_ms: float | None
    p99_ms: float | None
    buckets: list[DelayBucket]


class SubscriptionDetails(SubscriptionDocument, kw_only=True):
    """A subscription with the state of its messages.

    depth: messages that can be leased now. pending: messages that open transactions have acknowledged. unsettled: all
    messages that are not settled. dead: dead letters. push_status: by broker; empty without a push.
    oldest_age_ms: of the oldest unsettled message. ack_rate, retry_rate: recent rates per second.
    """

    depth: int
    in_flight: int
    pending: int
    delayed: int
    dead: int
    unsettled: int
    oldest_age_ms: int | None
    acked: int
    retried: int
    ack_rate: float
    retry_rate: float
    filter_errors: int
    ack_delay: AckDelay
    push_status: list[PushStatusDocument]


class SubscriptionList(Struct):
    """Subscriptions, sorted by name."""

    subscriptions: list[SubscriptionDocument]


async def create_subscription(call: HttpCall[NoQuery, NewSubscription]) -> SubscriptionDocument:
    """Create a subscription on a topic. Subscription names are unique across the cluster."""
    body = call.body
    start = StartPosition() if body.start is None else body.start.start
    topic = call.names["topic"]
    change = None if body.push is None else push_change(call, body.name, body.push, None)
    push = None if change is None else change(None)
    try:
        made = await call.broker.queues.lifecycle.create(call.caller, topic, body.name, start, _policy(body), push=push)
    except RequestError as error:
        if error.kind is not ErrorKind.SUBSCRIPTION_ALREADY_EXISTS:
            raise
        other = call.broker.cluster.subscriptions.existing(body.name).topic
        raise RequestError(error.kind, f"{error.message}{_belongs_to(call, other, topic)}") from error
    return show_subscription(call, made, change)


async def list_subscriptions_of_topic(call: HttpCall[NoQuery, None]) -> SubscriptionList:
    """List the subscriptions of a topic."""
    topic = call.broker.topics.existing(call.names["topic"])
    return await _list(call, call.broker.cluster.subscriptions.all(topic.name))


async def list_subscriptions(call: HttpCall[NoQuery, None]) -> SubscriptionList:
    """List all subscriptions."""
    return await _list(call, call.broker.cluster.subscriptions.all())


async def show_one_subscription(call: HttpCall[NoQuery, None]) -> SubscriptionDetails:
    """Show a subscription: its policy, the state of its messages, and the rates of acks and retries."""
    subscription = subscription_of(call)
    stats = await call.broker.queues.statistics.stats(call.caller, subscription.name)
    shown = to_builtins(show_subscription(call, subscription))
    counted = {name: getattr(stats, name) for name in _STATS}
    pushing = call.broker.pushing
    statuses = [] if subscription.push is None else await pushing.statuses(call.caller, subscription)
    more = {"ack_delay": _ack_delay(stats.ack_delays), "push_status": list(map(show_push_status, statuses))}
    return convert(shown | counted | more, SubscriptionDetails)


async def change_subscription(call: HttpCall[NoQuery, SubscriptionChange]) -> SubscriptionDocument:
    """Change a subscription's policy, and the target of its push. Fields that are left out keep their values."""
    subscription, given = subscription_of(call), call.body.push
    change_push: ChangePush | None = None
    change = None
    if isinstance(given, PushRequestBody):
        call.check_again(_GIVE_TARGET)
        change_push = change = push_change(call, subscription.name, given, subscription)
    elif given is None:
        change_push = _no_push
    changed = await call.broker.queues.lifecycle.change(
        call.caller, subscription.name, _policy(call.body), change_push=change_push
    )
    return show_subscription(call, changed, change)


async def delete_subscription(call: HttpCall[NoQuery, None]) -> None:
    """Delete a subscription. The topic keeps its messages."""
    await call.broker.queues.lifecycle.delete(call.caller, subscription_of(call).name)


_OF_TOPIC = "/topics/{topic}/subscriptions"
_ALL = "/subscriptions"

_DEAD_LETTERS = topic(WRITE, "body.dead_letter_topic")
_CREATE = (group(READ, "body.name"), topic(READ, "topic"), _DEAD_LETTERS)
_CHANGE = (group(ALTER_CONFIGS, "subscription"), _DEAD_LETTERS)
_GIVE_TARGET = (group(READ, "subscription"), topic(READ, "subscription.topic"))

ENDPOINTS = (
    Endpoint(method="POST", path=_OF_TOPIC, needs=_CREATE, function=create_subscription, status=201, problems=(409,)),
    Endpoint(
        method="GET",
        path=_OF_TOPIC,
        needs=(topic(DESCRIBE, "topic"), group(DESCRIBE)),
        function=list_subscriptions_of_topic,
    ),
    Endpoint(method="GET", path=_ALL, needs=(group(DESCRIBE),), function=list_subscriptions),
    *(
        endpoint
        for path in (f"{_OF_TOPIC}/{{subscription}}", f"{_ALL}/{{subscription}}")
        for endpoint in (
            Endpoint(method="GET", path=path, needs=(group(DESCRIBE, "subscription"),), function=show_one_subscription),
            Endpoint(method="PATCH", path=path, needs=_CHANGE, function=change_subscription, problems=(409,)),
            Endpoint(
                method="DELETE",
                path=path,
                needs=(group(DELETE, "subscription"),),
                function=delete_subscription,
                status=204,
            ),
        )
    ),
)

_STATS = (
    set(SubscriptionDetails.__struct_fields__)
    - set(SubscriptionDocument.__struct_fields__)
    - {"ack_delay", "push_status"}
)


def subscription_of(call: HttpCall[Any, Any]) -> Subscription:
    """Return the subscription of the path. Raises RequestError (UNKNOWN_SUBSCRIPTION), also for a wrong topic; for one
    that does not exist UNKNOWN_TOPIC, if the client may know that.
    """
    subscription = call.broker.cluster.subscriptions.existing(call.names["subscription"])
    topic = call.names.get("topic", subscription.topic)
    if topic != subscription.topic:
        if call.may(DESCRIBE, ResourceType.TOPIC, topic):
            call.broker.topics.existing(topic)
        raise RequestError(
            ErrorKind.UNKNOWN_SUBSCRIPTION,
            f"topic '{topic}' has no subscription '{subscription.name}'{_belongs_to(call, subscription.topic, topic)}",
        )
    return subscription


def _belongs_to(call: HttpCall[Any, Any], topic: str, asked_topic: str) -> str:
    """Return the end of a refusal: the topic of a subscription, if it is another one that the client may describe."""
    is_shown = topic != asked_topic and call.may(DESCRIBE, ResourceType.TOPIC, topic)
    return f": it belongs to topic '{topic}'" if is_shown else ""


def show_subscription(
    call: HttpCall[Any, Any], subscription: Subscription, change: PushChange | None = None
) -> SubscriptionDocument:
    """Return the document of one subscription. change: of its push, by this request."""
    push = show_push(call, subscription, change)
    return convert(
        {
            **policy_document(subscription.policy),
            "name": subscription.name,
            "topic": subscription.topic,
            "id": str(subscription.id),
            "start": format_start(subscription.start),
            "push": None if push is None else to_builtins(push),
        },
        SubscriptionDocument,
    )


async def _list(call: HttpCall[NoQuery, None], subscriptions: list[Subscription]) -> SubscriptionList:
    permitted = await call.permitted(DESCRIBE, ResourceType.GROUP, subscriptions)
    in_turns = call.broker.slices.each(permitted)
    return SubscriptionList([show_subscription(call, subscription) async for subscription in in_turns])


def _policy(body: PolicyChange) -> dict[str, Any]:
    """Return the fields that the request gives."""
    given = {name: getattr(body, name) for name in PolicyChange.__struct_fields__}
    return {name: to_builtins(value) for name, value in given.items() if value is not UNSET}


def _no_push(present: PushTarget | None) -> None:
    """The change that ends a push."""


def _ack_delay(delays: AckDelays) -> AckDelay:
    return AckDelay(
        sum(delays.counts),
        delays.sum_ms,
        quantile(0.5, DELAY_BOUNDS_MS, delays.counts),
        quantile(0.99, DELAY_BOUNDS_MS, delays.counts),
        [DelayBucket(*bucket) for bucket in zip((*DELAY_BOUNDS_MS, None), delays.counts, strict=True)],
    )
