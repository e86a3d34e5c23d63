"""Schedules: each publishes a message whenever its cron expression matches."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from conveyor.broker.broker_node import BrokerNode
from conveyor.http.endpoints.endpoint import Endpoint, NoQuery
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.requests.payloads import (
    Encoding,
    Headers,
    as_bytes,
    as_text,
    headers_count,
    read_headers,
    show_headers,
)
from conveyor.http_api.rest.topic_endpoints import TopicName
from conveyor.kernel.access.acl import ResourceType
from conveyor.kernel.access.declared_access import DESCRIBE, WRITE, topic
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.response_budget import SMALL_BYTES
from conveyor.records.record import Header
from conveyor.schedules.definition import Schedule

_Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[a-zA-Z0-9._-]+$", examples=["nightly"])]
_Cron = Annotated[str, Meta(min_length=1, max_length=200, examples=["0 3 * * *"])]
_MAX_HEADERS = 1_000
"""Each firing copies them while other clients wait."""
_SCHEDULE_BYTES = 1_000
"""The memory of a schedule without its payload, key and headers."""
_NewHeaders = Annotated[Headers, Meta(max_length=_MAX_HEADERS)]


class NewSchedule(Struct, forbid_unknown_fields=True, kw_only=True):
    """A new schedule. cron: five fields, as in `0 3 * * *`. time_zone: its IANA name."""

    name: _Name
    topic: TopicName
    cron: _Cron
    time_zone: str = "UTC"
    payload: str = ""
    payload_encoding: Encoding | None = None
    key: str | None = None
    key_encoding: Encoding | None = None
    headers: _NewHeaders = {}
    paused: bool = False


class ScheduleChange(Struct, forbid_unknown_fields=True, kw_only=True):
    """Changes of a schedule. Fields that are left out keep their values."""

    topic: TopicName | UnsetType = UNSET
    cron: _Cron | UnsetType = UNSET
    time_zone: str | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    payload_encoding: Encoding | None = None
    key: str | UnsetType | None = UNSET
    key_encoding: Encoding | None = None
    headers: _NewHeaders | UnsetType = UNSET
    paused: bool | UnsetType = UNSET


class ScheduleDocument(Struct, kw_only=True):
    """A schedule. next_ms: the next time, in ms since 1970; null if there is none, or while it is paused. owner: the
    user whom the messages name as their publisher, as `User:alice`; null for a client without a login.
    """

    name: str
    topic: str
    cron: str
    time_zone: str
    payload: str | None
    payload_encoding: Encoding | UnsetType = UNSET
    key: str | None
    key_encoding: Encoding | UnsetType = UNSET
    headers: Headers
    paused: bool
    next_ms: int | None
    owner: str | None


class ScheduleList(Struct):
    """Schedules, sorted by name."""

    schedules: list[ScheduleDocument]


async def create_schedule(call: HttpCall[NoQuery, NewSchedule]) -> ScheduleDocument:
    """Create a schedule: publish a message whenever a cron expression matches."""
    body = call.body
    schedule = Schedule(
        name=body.name,
        topic=body.topic,
        cron=body.cron,
        time_zone=body.time_zone,
        payload=as_bytes(body.payload, body.payload_encoding, "payload") or b"",
        key=as_bytes(body.key, body.key_encoding, "key"),
        headers=_headers(body.headers),
        paused=body.paused,
    )
    return _show(call.broker, await call.broker.schedules.add(call.caller, schedule))


async def list_schedules(call: HttpCall[NoQuery, None]) -> ScheduleList:
    """List the schedules."""
    shown, weight_bytes = list[ScheduleDocument](), 0
    async for schedule in call.broker.slices.each(call.broker.schedules.all(), _items):
        if not call.may(DESCRIBE, ResourceType.TOPIC, schedule.topic):
            continue
        weight_bytes += _weight_bytes(schedule)
        if weight_bytes > SMALL_BYTES:
            call.hold(weight_bytes)
            weight_bytes = 0
        shown.append(_show(call.broker, schedule))
    return ScheduleList(shown)


async def show_schedule(call: HttpCall[NoQuery, None]) -> ScheduleDocument:
    """Show a schedule and its next time."""
    return _show(call.broker, call.broker.schedules.existing(call.names["schedule"]))


async def change_schedule(call: HttpCall[NoQuery, ScheduleChange]) -> ScheduleDocument:
    """Change, pause or resume a schedule, from now on. Fields that are left out keep their values.

    Times that pass while it is paused are skipped.
    """
    body = call.body
    given: dict[str, Any] = {name: getattr(body, name) for name in ("topic", "cron", "time_zone", "paused")}
    if body.payload is not UNSET:
        given["payload"] = as_bytes(body.payload, body.payload_encoding, "payload")
    if body.key is not UNSET:
        given["key"] = as_bytes(body.key, body.key_encoding, "key")
    if body.headers is not UNSET:
        given["headers"] = _headers(body.headers)
    changes = {name: value for name, value in given.items() if value is not UNSET}
    return _show(call.broker, await call.broker.schedules.change(call.caller, call.names["schedule"], changes))


async def delete_schedule(call: HttpCall[NoQuery, None]) -> None:
    """Delete a schedule. The messages that it published stay."""
    await call.broker.schedules.remove(call.caller, call.names["schedule"])


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/schedules",
        needs=(topic(WRITE, "body.topic"),),
        function=create_schedule,
        status=201,
        problems=(404, 409),
    ),
    Endpoint(method="GET", path="/schedules", needs=(topic(DESCRIBE),), function=list_schedules),
    Endpoint(
        method="GET", path="/schedules/{schedule}", needs=(topic(DESCRIBE, "schedule.topic"),), function=show_schedule
    ),
    Endpoint(
        method="PATCH",
        path="/schedules/{schedule}",
        needs=(topic(WRITE, "schedule.topic"), topic(WRITE, "body.topic")),
        function=change_schedule,
    ),
    Endpoint(
        method="DELETE",
        path="/schedules/{schedule}",
        needs=(topic(WRITE, "schedule.topic"),),
        function=delete_schedule,
        status=204,
    ),
)


def _headers(given: Headers) -> tuple[Header, ...]:
    count = headers_count(given)
    if count > _MAX_HEADERS:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"the message has {count} headers: at most {_MAX_HEADERS}")
    return tuple(read_headers(given))


def _weight_bytes(schedule: Schedule) -> int:
    """Return the memory that shows a schedule, about."""
    headers = sum(len(name) + len(value or b"") for name, value in schedule.headers)
    return _SCHEDULE_BYTES + len(schedule.payload) + len(schedule.key or b"") + headers


def _items(schedule: Schedule) -> int:
    """Return as how many items of a slice a schedule counts: ten ordinary ones take up to 10 ms, to find their next
    times.
    """
    return 25 + len(schedule.headers) // 4 + (len(schedule.payload) >> 12)


def _show(broker: BrokerNode, schedule: Schedule) -> ScheduleDocument:
    payload, payload_encoding = as_text(schedule.payload)
    key, key_encoding = as_text(schedule.key)
    return ScheduleDocument(
        name=schedule.name,
        topic=schedule.topic,
        cron=schedule.cron,
        time_zone=schedule.time_zone,
        payload=payload,
        payload_encoding=payload_encoding,
        key=key,
        key_encoding=key_encoding,
        headers=show_headers(schedule.headers),
        paused=schedule.paused,
        next_ms=schedule.next_ms(broker.clock.now_ms()),
        owner=schedule.owner or None,
    )
