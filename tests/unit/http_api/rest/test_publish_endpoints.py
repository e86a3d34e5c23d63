"""The attributes of a publish request become headers of the message."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.http.engine.http_request import Request
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.requests.body_parts import PART_BYTES
from conveyor.http_api.requests.durations import Duration
from conveyor.http_api.requests.times_and_positions import Timestamp
from conveyor.http_api.rest.publish_endpoints import (
    NewMessages,
    PublishAttributes,
    PublishQuery,
    Receipt,
    batch_reader,
    outgoing_messages,
    publish_batch,
    publish_message,
    read_batch,
)
from conveyor.http_api.rest.transaction_endpoints import NewTopicMessages, NewTransaction
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError
from tests.callers import CALLER


class Written:
    """Records messages instead of publishing them."""

    def __init__(self) -> None:
        self.taken: list[OutgoingMessage] = []

    def submit(self, caller: Caller, topic: str, messages: list[OutgoingMessage], reply: Callable[..., None]) -> None:
        assert (caller, topic) == (CALLER, "t")
        self.taken += messages
        reply([PublishedMessage(f"0-{number}", 0, number, False) for number in range(len(messages))])


def publish(query: PublishQuery, *headers: tuple[str, str]) -> OutgoingMessage:
    written = Written()
    door: Any = SimpleNamespace(broker=SimpleNamespace(produce=SimpleNamespace(messages=written)))
    request = Request("POST", b"/", {}, is_http_11=True)
    request.repeated = [(name.lower().encode(), value.encode("utf-8", "surrogateescape")) for name, value in headers]
    exchange: Any = SimpleNamespace(request=request, caller=CALLER, meter=None)
    receipts: list[Receipt] = []

    def reply(answer: Any, make: Callable[[Any], Any] | None = None) -> None:
        assert make is not None
        receipts.append(make(answer))

    publish_message(HttpCall(door, exchange, {"topic": "t"}, query, b"x"), reply)
    assert [receipt.message_id for receipt in receipts] == ["0-0"]
    return written.taken[0]


async def test_message_without_attributes_has_no_headers() -> None:
    assert publish(PublishQuery(), ("User-Agent", "curl")) == OutgoingMessage(value=b"x")


async def test_every_attribute_becomes_a_header() -> None:
    query = PublishQuery(
        key="k",
        delay=Duration(5000),
        deliver_at=Timestamp(17),
        priority=0,
        tag="t",
        ttl=Duration(0),
        dedup_id="d",
        partition=3,
        header=["a:1", "a: 2", "b:"],
    )
    message = publish(query)
    assert (message.key, message.partition) == (b"k", 3)
    assert message.headers == (
        ("a", b"1"),
        ("a", b"2"),
        ("b", b""),
        ("conveyor-delay-ms", b"5000"),
        ("conveyor-deliver-at-ms", b"17"),
        ("conveyor-ttl-ms", b"0"),
        ("conveyor-priority", b"0"),
        ("conveyor-tag", b"t"),
        ("conveyor-dedup-id", b"d"),
    )


async def test_query_takes_precedence_over_request_headers() -> None:
    message = publish(PublishQuery(tag="query", priority=0), ("Conveyor-Tag", "header"), ("conveyor-priority", "9"))
    assert message.headers == (("conveyor-priority", b"0"), ("conveyor-tag", b"query"))


async def test_request_header_may_hold_any_bytes() -> None:
    raw = b"\xff".decode("utf-8", "surrogateescape")
    message = publish(PublishQuery(), ("Conveyor-Key", raw), ("Conveyor-Header", f"name: {raw}"))
    assert (message.key, message.headers) == (b"\xff", (("name", b"\xff"),))


@pytest.mark.parametrize("header", [":value", "value", "", "na\u00admé\udcff:1"])
async def test_header_without_a_valid_name_is_refused(header: str) -> None:
    with pytest.raises(RequestError, match="is not a header: write name:value"):
        publish(PublishQuery(), ("Conveyor-Header", header))


@pytest.mark.parametrize("name", ["Conveyor-Priority", "Conveyor-Partition", "Conveyor-Delay", "Conveyor-Deliver-At"])
async def test_request_header_with_other_bytes_than_its_attribute_has_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=r"^in the Conveyor- request headers: "):
        publish(PublishQuery(), (name, b"\xff".decode("utf-8", "surrogateescape")))


async def test_header_that_would_have_no_effect_is_refused() -> None:
    with pytest.raises(RequestError, match="conveyor-delay-ms is 'soon'"):
        publish(PublishQuery(header=["conveyor-delay-ms:soon"]))


def test_query_and_batch_have_the_same_attributes() -> None:
    assert set(PublishAttributes.__struct_fields__) <= set(PublishQuery.__struct_fields__)


@pytest.mark.slow
async def test_large_batch_is_decoded_in_many_ticks_up_to_the_limit() -> None:
    headers = {f"h{number}": "v" * 90 for number in range(10)}
    sound = msgspec.json.encode({"messages": [{"payload": "x", "headers": headers}] * 10_000})
    assert await turns(read_batch(sound)) > len(sound) // PART_BYTES
    too_many = msgspec.json.encode({"messages": [{"payload": ""}] * 900_000})
    with pytest.raises(RequestError, match=r"length <= 10000 - at `\$\.messages`"):
        await read_batch(too_many)
    reading = asyncio.ensure_future(read_batch(too_many))
    assert await turns(asyncio.wait([reading])) < 30, "the rest of the batch is not decoded"
    assert reading.exception() is not None


REPEATED = {"payload": "", "headers": {"a": [""] * 20_000}}
"""A message of less than 64 KiB. A thousand times shorter in gzip."""


@pytest.mark.parametrize("read", [read_batch, batch_reader(NewTopicMessages), batch_reader(NewTransaction)])
async def test_headers_of_a_batch_are_limited_before_all_of_them_are_decoded(
    read: Callable[[bytes], Awaitable[object]],
) -> None:
    """They take 50 times as much memory as the request, in which a repeated name has a list of values."""
    message = REPEATED if read is read_batch else REPEATED | {"topic": "t"}
    await read(msgspec.json.encode({"messages": [message] * 5}))
    reading = asyncio.ensure_future(read(msgspec.json.encode({"messages": [message] * 250})))
    assert await turns(asyncio.wait([reading])) < 30, "the rest of the batch is not decoded"
    with pytest.raises(RequestError, match="the messages have more than 100000 headers"):
        await reading


async def test_many_values_of_a_header_are_made_a_message_at_a_time() -> None:
    batch = await read_batch(msgspec.json.encode({"messages": [REPEATED] * 5}))
    assert isinstance(batch, NewMessages)
    weights: list[int] = []
    exchange = SimpleNamespace(memory=SimpleNamespace(weigh=weights.append), meter=None)
    call: Any = SimpleNamespace(body=NewMessages([batch.messages[0]]), exchange=exchange)
    publishing = publish_batch(call, lambda *_: None)
    assert publishing is not None, "it takes several ticks"
    assert weights == [500 + 20_000 * 150]
    publishing.close()
    made: list[OutgoingMessage] = []

    async def make() -> None:
        async for _, outgoing in outgoing_messages(batch.messages):
            assert isinstance(outgoing, OutgoingMessage)
            made.append(outgoing)

    assert await turns(make()) > 5
    assert [len(outgoing.headers) for outgoing in made] == [20_000] * 5


async def turns(work: Awaitable[object]) -> int:
    """Return the number of ticks of the event loop that the work takes."""
    task = asyncio.ensure_future(work)
    count = 0
    while not task.done():
        count += 1
        await asyncio.sleep(0)
    await task
    return count
