"""The parts of a batch contain the same messages as the whole, and an invalid batch is refused in parts too."""

import json
import random
import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.http_api.requests.body_parts import (
    MAX_MESSAGE_BYTES,
    MAX_REST_BYTES,
    MAX_REST_VALUES,
    MAX_VALUES,
    PART_BYTES,
    batch_parts,
)
from conveyor.http_api.rest.publish_endpoints import read_batch
from conveyor.kernel.errors import ErrorKind, RequestError

decode = msgspec.json.Decoder(dict[str, list[dict[str, object]]]).decode


async def parts_of(body: bytes) -> list[bytes]:
    return [part async for part in batch_parts(body)]


async def messages_of(body: bytes) -> list[object]:
    return [message for part in await parts_of(body) for message in decode(part)["messages"]]


NASTY = ['},{"payload":"', '"]}', "\\", '\\"', "\\\\", "{[", ", ", "é\u2028", '{"a":[{"b":"c"},{}]}', "\\u0022"]
TEXT = st.lists(st.sampled_from([*NASTY, "x" * 3_000]), max_size=8).map("".join)
HEADERS = st.dictionaries(TEXT, st.one_of(st.none(), TEXT, st.lists(TEXT, max_size=3)), max_size=4)


@pytest.mark.slow
@given(
    kinds=st.lists(st.fixed_dictionaries({"payload": TEXT, "headers": HEADERS}), min_size=1, max_size=12),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", "\t:  ")]),
    seed=st.integers(0, 1 << 32),
)
async def test_parts_contain_the_messages_of_the_whole(
    kinds: list[dict[str, object]], separators: tuple[str, str], seed: int
) -> None:
    messages = random.Random(seed).choices(kinds, k=120)
    body = json.dumps({"messages": messages}, separators=separators, ensure_ascii=False).encode()
    assert await messages_of(body) == messages


async def test_parts_are_short() -> None:
    body = json.dumps({"messages": [{"payload": "x" * 100}] * 10_000}).encode()
    assert max(map(len, await parts_of(body))) < 2 * PART_BYTES
    assert await messages_of(body) == json.loads(body)["messages"]


async def test_message_longer_than_a_part_is_one() -> None:
    body = json.dumps({"messages": [{"payload": '"},{' * PART_BYTES}] * 3}).encode()
    assert len(await parts_of(body)) == 3
    assert await messages_of(body) == json.loads(body)["messages"]


LONG = json.dumps({"messages": [{"payload": "x" * 100}] * 2_000}).encode()


@pytest.mark.parametrize(
    "broken",
    [
        lambda body: body[:-1],
        lambda body: body[:-2],
        lambda body: body + b"}",
        lambda body: body[:-2] + b",]}",
        lambda body: body[:-2] + b'], "messages": []}',
        lambda body: body[:-2] + b'], "other": 1}',
        lambda body: body[:-2] + b"]]}",
        lambda body: body[:-2] + b"}}",
        lambda body: body.replace(b"}, {", b"} {"),
        lambda body: body.replace(b"}, {", b"},, {"),
        lambda body: body.replace(b"}, {", b"}], {", 1),
        lambda body: body.replace(b'"}', b"}", 1000),
        lambda body: body.replace(b'{"messages"', b'{"other": 1, "messages"'),
        lambda body: b"[" * len(body),
        lambda body: b" " * len(body),
        lambda body: b'{"messages": [' + b"\\" * len(body),
    ],
)
async def test_invalid_batch_is_refused(broken: Callable[[bytes], bytes]) -> None:
    assert len((await read_batch(LONG)).messages) == 2_000
    with pytest.raises(RequestError) as refused:
        await read_batch(broken(LONG))
    assert refused.value.kind is ErrorKind.INVALID_REQUEST


async def test_last_part_has_the_other_fields() -> None:
    document = {"id": '"messages": [', "list": [{"messages": 1}], "messages": [{"payload": "x" * 100}] * 2_000, "z": []}
    *parts, last = await parts_of(json.dumps(document).encode())
    assert len(parts) > 1
    assert all(json.loads(part).keys() == {"messages"} for part in parts)
    found = json.loads(last)
    messages = [message for part in parts for message in json.loads(part)["messages"]] + found["messages"]
    assert {**found, "messages": messages} == document


@pytest.mark.parametrize("has_messages", [True, False])
async def test_other_fields_have_a_limit(has_messages: bool) -> None:
    messages = [{"payload": "x"}] * 10_000 if has_messages else []
    for size, is_refused in ((MAX_REST_BYTES - 1_000, False), (MAX_REST_BYTES, True)):
        body = json.dumps({"messages": messages, "id": "x" * size}).encode()
        if is_refused:
            with pytest.raises(RequestError) as refused:
                await parts_of(body)
            assert refused.value.kind is ErrorKind.MESSAGE_TOO_LARGE
        else:
            await parts_of(body)


MANY = ",".join(f'"{number}":[]' for number in range(MAX_REST_VALUES)).encode()


@pytest.mark.parametrize(
    "body",
    [
        b'{"m\\u0065ssages":[{"headers":{%b}}]}' % MANY,
        b'{"messages"%b:[{"headers":{%b}}]}' % (b" " * 1_001, MANY),
        b'{"messages":[],"more":{%b}}' % MANY,
        b'{"more":{%b},"messages":[]}' % MANY,
        b'{"acknowledge":{%b}}' % MANY,
        b'{"acknowledge":{"s":[%b]}}' % (b"," * PART_BYTES),
    ],
)
async def test_values_outside_of_the_messages_have_a_limit(body: bytes) -> None:
    """They are decoded in one tick, before it is known whether the client may send them."""
    with pytest.raises(RequestError, match="besides its messages"):
        await parts_of(body)


async def test_most_messages_to_acknowledge_are_few_enough_values() -> None:
    body = json.dumps({"acknowledge": {"s": [f"{number}.abcdefgh" for number in range(10_000)]}}).encode()
    assert await parts_of(body) == [body]


async def test_error_names_the_message_in_a_later_part() -> None:
    with pytest.raises(RequestError, match=re.escape("$.messages[1500].payload")):
        await read_batch(json.dumps({"messages": [{"payload": "x" * 100}] * 1_500 + [{"payload": 7}] * 9}).encode())


@pytest.mark.parametrize("value", ['"a"', "null", "[]", "{}"])
async def test_message_with_too_many_values_is_refused(value: str) -> None:
    values = ",".join([value] * (PART_BYTES // 2))
    with pytest.raises(RequestError, match=f"more than {MAX_VALUES}") as refused:
        await messages_of(b'{"messages": [{"headers": {"a": [%b]}}]}' % values.encode())
    assert refused.value.kind is ErrorKind.INVALID_REQUEST


async def test_message_that_takes_too_long_to_decode_is_refused() -> None:
    short, long = (
        '{"payload": "%s"}' % ("x" * size) for size in (MAX_MESSAGE_BYTES - PART_BYTES, MAX_MESSAGE_BYTES + PART_BYTES)
    )
    assert len(await messages_of(f'{{"messages": [{short}, {short}]}}'.encode())) == 2
    with pytest.raises(RequestError, match="publish it alone") as refused:
        await messages_of(f'{{"messages": [{short}, {long}]}}'.encode())
    assert refused.value.kind is ErrorKind.MESSAGE_TOO_LARGE
