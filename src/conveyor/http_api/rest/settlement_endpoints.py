"""Settle leased messages, one or many, by ack id or message id: ack, nack, extend, reject.

Each message has its own result. A request for a single message, named by `ack_id` or `message_id`, fails with the
problem of that message. A request with a list of messages returns 200 and the results in order.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from conveyor.http.endpoints.endpoint import Endpoint, NoQuery, Responder
from conveyor.http.engine.problems import Problem, problem_of
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.requests.durations import Duration
from conveyor.http_api.rest.lease_endpoints import Visibility
from conveyor.http_api.rest.subscription_endpoints import subscription_of
from conveyor.kernel.access.declared_access import READ, group, topic
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.queue_commands import MAX_REASON_CHARACTERS

_TARGETS = ("ack_id", "message_id", "ack_ids", "message_ids")
_Id = Annotated[str, Meta(min_length=1, max_length=1000)]
_Ids = Annotated[list[_Id], Meta(min_length=1, max_length=10_000)]
ONE_OF = Meta(extra_json_schema={"oneOf": [{"required": [name]} for name in _TARGETS]})


class Targets(Struct, forbid_unknown_fields=True, kw_only=True):
    """The messages to act on: exactly one of the four fields."""

    ack_id: _Id | UnsetType = UNSET
    message_id: _Id | UnsetType = UNSET
    ack_ids: _Ids | UnsetType = UNSET
    message_ids: _Ids | UnsetType = UNSET


class Ack(Targets, kw_only=True):
    """accept_late: whether an `ack_id` is also accepted after its lease has expired, as long as the message was not
    leased again. It has no effect with exactly-once delivery.
    """

    accept_late: bool = False


class Nack(Targets, kw_only=True):
    """delay: time until the message can be leased again; default: the subscription's `retry`."""

    delay: Duration | None = None


class Extension(Targets, kw_only=True):
    """visibility: the duration of the lease from now on."""

    visibility: Visibility


class Rejection(Targets, kw_only=True):
    """reason: text for the dead letter."""

    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARACTERS)] = "rejected"


class Settled(Struct, omit_defaults=True):
    """The result for one message. ack_id or message_id: as in the request."""

    status: Literal["ok", "error"]
    ack_id: str | None = None
    message_id: str | None = None
    error: Problem | None = None


class SettledList(Struct):
    """The results, in the order of the request."""

    results: list[Settled]


def ack_messages(call: HttpCall[NoQuery, Annotated[Ack, ONE_OF]], reply: Responder[SettledList]) -> None:
    """Acknowledge messages: they are settled and never delivered again."""
    name, body, targets = subscription_of(call).name, call.body, targets_of(call.body)
    settled = _settled(body, targets, reply)
    call.broker.queues.settlements.ack(call.caller, name, targets, settled, accepts_late=body.accept_late)


def nack_messages(call: HttpCall[NoQuery, Annotated[Nack, ONE_OF]], reply: Responder[SettledList]) -> None:
    """Return messages: they are delivered again after a delay, or become dead letters after their last delivery."""
    name, body, targets = subscription_of(call).name, call.body, targets_of(call.body)
    call.broker.queues.settlements.nack(call.caller, name, targets, body.delay, _settled(body, targets, reply))


def extend_leases(call: HttpCall[NoQuery, Annotated[Extension, ONE_OF]], reply: Responder[SettledList]) -> None:
    """Extend or shorten leases, counted from now."""
    name, body, targets = subscription_of(call).name, call.body, targets_of(call.body)
    call.broker.queues.settlements.extend(call.caller, name, targets, body.visibility, _settled(body, targets, reply))


def reject_messages(call: HttpCall[NoQuery, Annotated[Rejection, ONE_OF]], reply: Responder[SettledList]) -> None:
    """Make messages dead letters at once, with a reason."""
    name, body, targets = subscription_of(call).name, call.body, targets_of(call.body)
    call.broker.queues.settlements.reject(call.caller, name, targets, body.reason, _settled(body, targets, reply))


_SETTLE = (group(READ, "subscription"), topic(READ, "subscription.topic"))

ENDPOINTS = tuple(
    Endpoint(
        method="POST", path=f"/subscriptions/{{subscription}}/{verb}", needs=_SETTLE, function=function, problems=(409,)
    )
    for verb, function in (
        ("ack", ack_messages),
        ("nack", nack_messages),
        ("extend", extend_leases),
        ("reject", reject_messages),
    )
)


def targets_of(body: Targets) -> list[str]:
    """Return the messages to act on. Raises RequestError (INVALID_REQUEST) unless exactly one field is given."""
    given: list[Any] = [value for name in _TARGETS if (value := getattr(body, name)) is not UNSET]
    if len(given) != 1:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"name the messages by exactly one of {', '.join(_TARGETS)}")
    return given[0] if isinstance(given[0], list) else given


def names_leases(body: Targets) -> bool:
    """Return whether the messages are named by ack ids."""
    return body.ack_id is not UNSET or body.ack_ids is not UNSET


def _settled(
    body: Targets, targets: list[str], reply: Responder[SettledList]
) -> Callable[[Sequence[RequestError | None] | RequestError], None]:
    """Return what replies with the results of the targets of a body."""
    return partial(reply, make=partial(_results, body, targets))


def _results(body: Targets, targets: list[str], errors: Sequence[RequestError | None]) -> SettledList:
    if (body.ack_id is not UNSET or body.message_id is not UNSET) and errors[0] is not None:
        raise errors[0]
    make = _by_ack_id if names_leases(body) else _by_message_id
    return SettledList(list(map(make, targets, errors)))


def _by_ack_id(ack_id: str, error: RequestError | None) -> Settled:
    return Settled("ok", ack_id) if error is None else Settled("error", ack_id, error=problem_of(error))


def _by_message_id(message_id: str, error: RequestError | None) -> Settled:
    return Settled("ok", None, message_id) if error is None else Settled("error", None, message_id, problem_of(error))
