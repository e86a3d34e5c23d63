"""Dead letters: list their topics, peek, redrive, drop."""

from functools import partial
from operator import attrgetter
from typing import Annotated, Any

from msgspec import Meta, Struct

from conveyor.broker.queues.dead_letters.dead_letter_copies import DeadLetter
from conveyor.cluster.quotas import CONSUMER_BYTE_RATE
from conveyor.http.endpoints.endpoint import Endpoint, NoQuery
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.rest.message_document import MessageDocument, message_fields
from conveyor.http_api.rest.subscription_endpoints import subscription_of
from conveyor.kernel.access.acl import ResourceType
from conveyor.kernel.access.declared_access import DELETE, DESCRIBE, READ, group, topic

_Filter = Annotated[str, Meta(min_length=1)]
_MessageIds = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=10_000)]


class DeadLetterTopicDocument(Struct):
    """A dead-letter topic and those of the subscriptions that use it that the client may see, with their depth."""

    topic: str
    depth: int
    subscriptions: list[str]


class DeadLetterTopics(Struct):
    """Dead-letter topics, sorted by name."""

    topics: list[DeadLetterTopicDocument]


class DeadLetterQuery(Struct, forbid_unknown_fields=True):
    """filter: a CEL expression that selects dead letters by their copies.

    after: the last `dead_letter_id` seen.
    """

    limit: Annotated[int, Meta(ge=1, le=1000)] = 10
    filter: _Filter | None = None
    after: str | None = None


class DeadLetterDocument(MessageDocument, kw_only=True):
    """A dead letter and its reason. Times are in ms since 1970.

    message_id, partition, offset: of the original, in `origin_topic`; redrive and drop take this id. dead_letter_id: of
    the copy in the dead-letter topic. timestamp_ms, payload, key and headers: of the copy.
    """

    dead_letter_id: str
    reason: str
    deliveries: int
    first_failure_ms: int
    last_failure_ms: int
    origin_topic: str
    subscription: str


class DeadLetterList(Struct):
    """Dead letters of a subscription.

    without_copy: number of further dead letters whose copy in the dead-letter topic was deleted or replaced. They
    cannot be shown, but can be redriven. null if the list is incomplete: with `after`, or if `limit` or the size of the
    response ended it.
    """

    messages: list[DeadLetterDocument]
    without_copy: int | None


class Selection(Struct, forbid_unknown_fields=True):
    """The dead letters to act on: those that match the filter, those with these ids, or all."""

    filter: _Filter | None = None
    message_ids: _MessageIds | None = None


class Redrive(Selection):
    """rate: the largest number of messages per second."""

    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None


class Redriven(Struct):
    """The number of redriven dead letters. unknown: ids that are not dead letters of the subscription."""

    redriven: int
    unknown: list[str]


class Dropped(Struct):
    """The number of dropped dead letters. unknown: ids that are not dead letters of the subscription."""

    dropped: int
    unknown: list[str]


async def list_dead_letter_topics(call: HttpCall[NoQuery, None]) -> DeadLetterTopics:
    """List the dead-letter topics."""
    described = await call.permitted(DESCRIBE, ResourceType.GROUP, call.broker.cluster.subscriptions.all())
    shown = await call.permitted(DESCRIBE, ResourceType.TOPIC, described, attrgetter("policy.dead_letter_topic"))
    topics = await call.broker.queues.dead_letters.topics(call.caller, shown)
    return DeadLetterTopics(
        [DeadLetterTopicDocument(topic.topic, topic.depth, list(topic.subscriptions)) for topic in topics]
    )


async def peek_dead_letters(call: HttpCall[DeadLetterQuery, None]) -> DeadLetterList:
    """Show the oldest dead letters of a subscription."""
    peeked = await call.broker.queues.dead_letters.peek(
        call.caller, subscription_of(call).name, call.query.limit, call.query.filter, call.query.after
    )
    if call.exchange.meter is not None:
        call.count_shown(letter.message for letter in peeked.letters)
    weight_bytes = sum(letter.message.weight_bytes for letter in peeked.letters)
    return await call.show(weight_bytes, lambda: DeadLetterList(list(map(_show, peeked.letters)), peeked.without_copy))


async def redrive_dead_letters(call: HttpCall[NoQuery, Redrive]) -> Redriven:
    """Deliver dead letters again: all, those that match a filter, or those with these ids.

    The response is sent when all are redriven, which may take long with a `rate`. Meanwhile the subscription's `dead`
    shows how many are left.
    """
    name, body = subscription_of(call).name, call.body
    redriven = Redriven(0, await _unknown(call, name))

    def count(done: int, _total: int) -> None:
        redriven.redriven = done
        call.check_again(_MOVE)

    work = partial(
        call.broker.queues.dead_letters.redrive.redrive,
        call.caller,
        name,
        filter=body.filter,
        message_ids=body.message_ids,
        rate=body.rate,
        progress=count,
    )
    await call.door.long_polls.wait(work, 0)
    return redriven


async def drop_dead_letters(call: HttpCall[NoQuery, Selection]) -> Dropped:
    """Drop dead letters: all, those that match a filter, or those with these ids. Their copies stay."""
    name, body = subscription_of(call).name, call.body
    unknown = await _unknown(call, name)
    dropped = await call.broker.queues.dead_letters.redrive.drop(
        call.caller, name, filter=body.filter, message_ids=body.message_ids
    )
    return Dropped(dropped, unknown)


_PEEK = (group(DESCRIBE, "subscription"), topic(READ, "subscription.dead_letter_topic"))
_MOVE = (group(DELETE, "subscription"), topic(READ, "subscription.topic"))

ENDPOINTS = (
    Endpoint(method="GET", path="/dlq", needs=(topic(DESCRIBE), group(DESCRIBE)), function=list_dead_letter_topics),
    Endpoint(
        method="GET",
        path="/dlq/{subscription}",
        needs=_PEEK,
        function=peek_dead_letters,
        quotas=(CONSUMER_BYTE_RATE,),
    ),
    Endpoint(method="POST", path="/dlq/{subscription}/drop", needs=_MOVE, function=drop_dead_letters),
    Endpoint(method="POST", path="/dlq/{subscription}/redrive", needs=_MOVE, function=redrive_dead_letters),
    Endpoint(method="POST", path="/subscriptions/{subscription}/redrive", needs=_MOVE, function=redrive_dead_letters),
)


async def _unknown(call: HttpCall[NoQuery, Any], name: str) -> list[str]:
    return await call.broker.queues.dead_letters.unknown(call.caller, name, call.body.message_ids or ())


def _show(letter: DeadLetter) -> DeadLetterDocument:
    return DeadLetterDocument(
        **message_fields(letter.message),
        dead_letter_id=letter.copy_id,
        reason=letter.reason,
        deliveries=letter.deliveries,
        first_failure_ms=letter.first_failure_ms,
        last_failure_ms=letter.last_failure_ms,
        origin_topic=letter.message.topic,
        subscription=letter.subscription,
    )
