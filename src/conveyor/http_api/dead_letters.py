"""Dead letters: where they lie, what they are, delivered again, or given up."""

from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from conveyor.broker.dead_letters import DeadLetter
from conveyor.http_api.endpoint import Call, Endpoint, NoQuery
from conveyor.http_api.message_document import MessageDocument, message_fields
from conveyor.http_api.subscriptions import named

_Filter = Annotated[str, Meta(min_length=1)]
_MessageIds = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=10_000)]


class DeadLetterTopicDocument(Struct):
    """A topic of dead letters, and the subscriptions that send theirs there."""

    topic: str
    depth: int
    subscriptions: list[str]


class DeadLetterTopics(Struct):
    """Topics of dead letters by name."""

    topics: list[DeadLetterTopicDocument]


class DeadLetterQuery(Struct, forbid_unknown_fields=True):
    """filter: a CEL expression; only dead letters for which it is true are shown. after: the last `message_id` seen."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 10
    filter: _Filter | None = None
    after: str | None = None


class DeadLetterDocument(MessageDocument, kw_only=True):
    """A dead letter: why it is one, and where it comes from. Times are in ms since 1970."""

    reason: str
    deliveries: int
    first_failure_ms: int
    last_failure_ms: int
    origin_topic: str
    origin_message_id: str
    subscription: str


class DeadLetterList(Struct):
    """Dead letters of a subscription."""

    messages: list[DeadLetterDocument]


class Selection(Struct, forbid_unknown_fields=True):
    """Which dead letters are meant: those that the filter lets through, those that are named, or all."""

    filter: _Filter | None = None
    message_ids: _MessageIds | None = None


class Redrive(Selection):
    """rate: messages a second at most."""

    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None


class Redriven(Struct):
    """How many dead letters are delivered again."""

    redriven: int


class Dropped(Struct):
    """How many dead letters were given up."""

    dropped: int


async def list_dead_letter_topics(call: Call[NoQuery, None]) -> DeadLetterTopics:
    """List the topics of dead letters."""
    found = await call.broker.dead_letters.all()
    return DeadLetterTopics(
        [DeadLetterTopicDocument(each.topic, each.depth, list(each.subscriptions)) for each in found]
    )


async def peek_dead_letters(call: Call[DeadLetterQuery, None]) -> DeadLetterList:
    """Look at the dead letters of a subscription."""
    found = await call.broker.dead_letters.peek(named(call).name, call.query.limit, call.query.filter, call.query.after)
    return DeadLetterList([_show(each) for each in found])


async def redrive_dead_letters(call: Call[NoQuery, Redrive]) -> Redriven:
    """Deliver dead letters again: all, those that match, or those that are named.

    The answer comes when all are on their way, which may take long with a `rate`; meanwhile the subscription's `dead`
    tells how many are left.
    """
    name, body, redriven = named(call).name, call.body, Redriven(0)

    def count(done: int, _total: int) -> None:
        redriven.redriven = done

    work = partial(
        call.broker.dead_letters.redrive,
        name,
        filter=body.filter,
        message_ids=body.message_ids,
        rate=body.rate,
        progress=count,
    )
    await call.door.polls.wait(work, 0)
    return redriven


async def drop_dead_letters(call: Call[NoQuery, Selection]) -> Dropped:
    """Give dead letters up: all, those that match, or those that are named. Their copies stay where they lie."""
    name, body = named(call).name, call.body
    return Dropped(await call.broker.dead_letters.drop(name, filter=body.filter, message_ids=body.message_ids))


ENDPOINTS = (
    Endpoint(method="GET", path="/dlq", function=list_dead_letter_topics),
    Endpoint(method="GET", path="/dlq/{subscription}", function=peek_dead_letters),
    Endpoint(method="POST", path="/dlq/{subscription}/drop", function=drop_dead_letters),
    Endpoint(method="POST", path="/dlq/{subscription}/redrive", function=redrive_dead_letters),
    Endpoint(method="POST", path="/subscriptions/{subscription}/redrive", function=redrive_dead_letters),
)


def _show(letter: DeadLetter) -> DeadLetterDocument:
    return DeadLetterDocument(
        **message_fields(letter.message),
        reason=letter.reason,
        deliveries=letter.deliveries,
        first_failure_ms=letter.first_failure_ms,
        last_failure_ms=letter.last_failure_ms,
        origin_topic=letter.origin_topic,
        origin_message_id=letter.origin_id,
        subscription=letter.subscription,
    )
