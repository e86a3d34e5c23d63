"""The push of a subscription, as requests give it and responses show it."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, convert, structs, to_builtins

from conveyor.broker.queues.pushing.push_changes import PushChange
from conveyor.broker.queues.pushing.push_status import PushStatus
from conveyor.http_api.http_call import HttpCall
from conveyor.kernel.access.acl import ResourceType
from conveyor.kernel.access.declared_access import ALTER_CONFIGS
from conveyor.queues.push.push_target import (
    MAX_BATCH,
    MAX_CONCURRENCY,
    MAX_CONTENT_TYPE,
    MAX_TIMEOUT_MS,
    MIN_TIMEOUT_MS,
)
from conveyor.queues.push.push_url import MAX_URL_CHARACTERS, parse_push_url
from conveyor.queues.push.webhook_signature import MAX_SECRET_CHARACTERS
from conveyor.queues.subscription.policy import Subscription


class PushRequestBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The target of a push. Fields that are left out keep their values; a new target needs `url`.

    url: https, or http for this machine. mode: CloudEvents with their attributes in headers, in one JSON document, or
    several of these in a list. max_concurrency: the most requests at a time. batch_size: the most messages of a request
    in batch mode. content_type: of messages that have no header `content-type`. allow_private: the target may have an
    address that is not public, if the broker permits it (push.allow_private). paused: true sends nothing. secret:
    `whsec_` and base64, by which requests are signed; without it, a new target gets one, which the response shows once.
    rotate_secret: true makes a new one. The secret before it signs as well until drop_old_secret is true.
    """

    url: Annotated[str, Meta(min_length=1, max_length=MAX_URL_CHARACTERS)] | UnsetType = UNSET
    mode: Literal["binary", "structured", "batch"] | UnsetType = UNSET
    max_concurrency: Annotated[int, Meta(ge=1, le=MAX_CONCURRENCY)] | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=MIN_TIMEOUT_MS, le=MAX_TIMEOUT_MS)] | UnsetType = UNSET
    batch_size: Annotated[int, Meta(ge=1, le=MAX_BATCH)] | UnsetType = UNSET
    content_type: Annotated[str, Meta(min_length=3, max_length=MAX_CONTENT_TYPE)] | UnsetType = UNSET
    allow_private: bool | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    secret: Annotated[str, Meta(max_length=MAX_SECRET_CHARACTERS)] | UnsetType = UNSET
    rotate_secret: bool | UnsetType = UNSET
    drop_old_secret: bool | UnsetType = UNSET


class PushDocument(Struct, kw_only=True):
    """The target of a push; see `PushRequestBody`. url: clients without ALTER_CONFIGS on the subscription see it
    without path and query. paused: `requested` by a client, `gone` after an answer 410; null if it is not. owner: the
    user whose rights the push has. has_old_secret: two secrets sign. secret: only in the response to the request for
    which it was made.
    """

    url: str
    mode: str
    max_concurrency: int
    timeout_ms: int
    batch_size: int
    content_type: str
    allow_private: bool
    paused: str | None
    owner: str
    has_old_secret: bool
    secret: str | UnsetType = UNSET


class PushStatusDocument(Struct, kw_only=True):
    """The state of a push on one of the brokers that lead partitions of the topic; counts are since its start.

    state: pushing, paused, denied (the owner may not read the messages), or secret_unreadable. breaker: closed, open or
    half_open. retry_in_ms: until the broker sends a request again; null if it does. concurrency: the present limit of
    requests at a time. delivered: messages that the target has taken. failed: deliveries that count as failed.
    released: deliveries that do not count, as there was no connection, or the target was overloaded. last_error: it
    stays when later requests succeed.
    """

    broker: int
    state: str
    breaker: str
    retry_in_ms: int | None
    concurrency: int
    in_flight: int
    delivered: int
    failed: int
    released: int
    last_error: str | None
    last_error_ms: int | None


def push_change(
    call: HttpCall[Any, Any], name: str, given: PushRequestBody, present: Subscription | None
) -> PushChange:
    """Return the change that a request asks for. present: None for a new subscription. Raises RequestError."""
    document = {field: value for field, value in structs.asdict(given).items() if value is not UNSET}
    is_new = present is None or present.push is None
    return call.broker.pushing.changes.change(call.caller, name, document, is_new=is_new)


def show_push(
    call: HttpCall[Any, Any], subscription: Subscription, change: PushChange | None = None
) -> PushDocument | None:
    """Return the document of a push. change: the one that was made by this request."""
    target = subscription.push
    if target is None:
        return None
    is_whole = change is not None or call.may(ALTER_CONFIGS, ResourceType.GROUP, subscription.name)
    shown = None if change is None else change.shown_secret
    return PushDocument(
        url=target.url if is_whole else parse_push_url(target.url).origin,
        mode=target.mode,
        max_concurrency=target.max_concurrency,
        timeout_ms=target.timeout_ms,
        batch_size=target.batch_size,
        content_type=target.content_type,
        allow_private=target.allow_private,
        paused=target.paused,
        owner=str(target.owner.caller.principal),
        has_old_secret=len(target.secrets) > 1,
        secret=UNSET if shown is None else shown,
    )


def show_push_status(status: PushStatus) -> PushStatusDocument:
    """Return the document of the state on one broker."""
    fields = to_builtins(status)
    return convert(fields | {"broker": fields.pop("node_id")}, PushStatusDocument)
