"""Steering a subscription: seek, pause, resume, purge."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from conveyor.http_api.engine.endpoint import Call, Endpoint, NoQuery
from conveyor.http_api.requests.start_position import Beginning
from conveyor.http_api.rest.subscription_endpoints import SubscriptionDocument, named, show_subscription
from conveyor.kernel.errors import ErrorKind, RequestError

_ONE_OF = Meta(extra_json_schema={"oneOf": [{"required": ["start"]}, {"required": ["offsets"]}]})
_Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_PartitionText = Annotated[str, Meta(pattern="^[0-9]{1,6}$")]


class Seek(Struct, forbid_unknown_fields=True):
    """Where to go on. offsets: the next offset of each partition that is named, as in {"0": 17}."""

    start: Beginning | UnsetType = UNSET
    offsets: Annotated[dict[_PartitionText, _Offset], Meta(min_length=1)] | UnsetType = UNSET


class Purged(Struct):
    """How many messages were settled unread."""

    purged: int


async def seek_subscription(call: Call[NoQuery, Annotated[Seek, _ONE_OF]]) -> SubscriptionDocument:
    """Go on elsewhere: messages from there on come, again if need be; those before it do not."""
    name, body = named(call).name, call.body
    if (body.start is UNSET) == (body.offsets is UNSET):
        raise RequestError(ErrorKind.INVALID_REQUEST, "say where to go on by one of start, offsets")
    if not isinstance(body.offsets, UnsetType):
        await call.broker.queues.seek(name, {int(partition): offset for partition, offset in body.offsets.items()})
    elif not isinstance(body.start, UnsetType):
        await call.broker.queues.seek(name, body.start.start)
    return show_subscription(named(call))


async def pause_subscription(call: Call[NoQuery, None]) -> SubscriptionDocument:
    """Lease nothing until `resume`. What is leased stays leased."""
    await call.broker.queues.pause(named(call).name)
    return show_subscription(named(call))


async def resume_subscription(call: Call[NoQuery, None]) -> SubscriptionDocument:
    """Lease again."""
    await call.broker.queues.resume(named(call).name)
    return show_subscription(named(call))


async def purge_subscription(call: Call[NoQuery, None]) -> Purged:
    """Settle everything that waits, unread. The topic keeps its messages."""
    return Purged(await call.broker.queues.purge(named(call).name))


ENDPOINTS = tuple(
    Endpoint(method="POST", path=f"/subscriptions/{{subscription}}/{verb}", function=function, problems=problems)
    for verb, function, problems in (
        ("seek", seek_subscription, (416,)),
        ("pause", pause_subscription, ()),
        ("resume", resume_subscription, ()),
        ("purge", purge_subscription, ()),
    )
)
