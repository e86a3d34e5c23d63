"""Control a subscription: seek, pause, resume, purge."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from conveyor.http.endpoints.endpoint import Endpoint, NoQuery
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.requests.times_and_positions import SubscriptionStart
from conveyor.http_api.rest.subscription_endpoints import SubscriptionDocument, show_subscription, subscription_of
from conveyor.kernel.access.declared_access import ALTER_CONFIGS, DELETE, READ, group, topic
from conveyor.kernel.errors import ErrorKind, RequestError

_ONE_OF = Meta(extra_json_schema={"oneOf": [{"required": ["start"]}, {"required": ["offsets"]}]})
_Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_PartitionText = Annotated[str, Meta(pattern="^[0-9]{1,6}$")]


class Seek(Struct, forbid_unknown_fields=True):
    """The new position. offsets: the next offset of the partitions to move, as in {"0": 17}; others stay."""

    start: SubscriptionStart | UnsetType = UNSET
    offsets: Annotated[dict[_PartitionText, _Offset], Meta(min_length=1, max_length=10_000)] | UnsetType = UNSET


class Purged(Struct):
    """The number of messages settled without delivery."""

    purged: int


async def seek_subscription(call: HttpCall[NoQuery, Annotated[Seek, _ONE_OF]]) -> SubscriptionDocument:
    """Move a subscription. It delivers messages from the new position on, even settled ones, and no earlier ones."""
    name, body = subscription_of(call).name, call.body
    if (body.start is UNSET) == (body.offsets is UNSET):
        raise RequestError(ErrorKind.INVALID_REQUEST, "give the new position as either start or offsets")
    if not isinstance(body.offsets, UnsetType):
        await call.broker.queues.lifecycle.seek(
            call.caller, name, {int(partition): offset for partition, offset in body.offsets.items()}
        )
    elif not isinstance(body.start, UnsetType):
        await call.broker.queues.lifecycle.seek(call.caller, name, body.start.start)
    return show_subscription(call, subscription_of(call))


async def pause_subscription(call: HttpCall[NoQuery, None]) -> SubscriptionDocument:
    """Pause a subscription: it delivers nothing until `resume`. Leased messages stay leased."""
    await call.broker.queues.lifecycle.pause(call.caller, subscription_of(call).name)
    return show_subscription(call, subscription_of(call))


async def resume_subscription(call: HttpCall[NoQuery, None]) -> SubscriptionDocument:
    """Resume a paused subscription."""
    await call.broker.queues.lifecycle.resume(call.caller, subscription_of(call).name)
    return show_subscription(call, subscription_of(call))


async def purge_subscription(call: HttpCall[NoQuery, None]) -> Purged:
    """Settle all messages of a subscription without delivering them. The topic keeps them."""
    return Purged(await call.broker.queues.lifecycle.purge(call.caller, subscription_of(call).name))


_SEEK = (group(DELETE, "subscription"), topic(READ, "subscription.topic"))
"""As OffsetDelete of Kafka: messages are given up, or delivered again."""
_PAUSE = (group(ALTER_CONFIGS, "subscription"),)

ENDPOINTS = tuple(
    Endpoint(
        method="POST", path=f"/subscriptions/{{subscription}}/{verb}", needs=needs, function=function, problems=problems
    )
    for verb, needs, function, problems in (
        ("seek", _SEEK, seek_subscription, (416,)),
        ("pause", _PAUSE, pause_subscription, ()),
        ("resume", _PAUSE, resume_subscription, ()),
        ("purge", _SEEK, purge_subscription, ()),
    )
)
