"""Reads the query and the body of a request into the types that an endpoint declares."""

import asyncio
import re
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from json import JSONDecoder
from typing import Any, get_origin, get_type_hints
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import StreamReader, web
from multidict import MultiMapping

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients.request_budget import BEFORE_SHARE_BYTES, SMALL_REQUEST_BYTES
from conveyor.http_api.requests.content_encoding import ENCODINGS, Decompressor
from conveyor.http_api.requests.fields import decode_field, decoder
from conveyor.http_api.requests.type_errors import explain
from conveyor.kernel.errors import ErrorKind, RequestError

_MAX_EXPANSION = 1_032
"""Largest number of bytes to which one byte of deflate expands."""
MakeRoom = Callable[[], Awaitable[None]]


def check_target(target: str) -> None:
    """Check that percent-encoded text in the path and the query is UTF-8. Raises RequestError (INVALID_REQUEST).

    aiohttp replaces other bytes, so that different keys would become one. target: as the client has sent it.
    """
    if "%" not in target and target.isascii():
        return
    path, _, query = target.partition("?")
    for part in (path, *query.split("&")):
        try:
            unquote_to_bytes(part.encode("utf-8", "surrogateescape")).decode()
        except UnicodeDecodeError as error:
            raise _wrong(
                f"{part!r} in the request's path or query is not UTF-8: the request headers Conveyor-Key, Conveyor-Tag,"
                " Conveyor-Dedup-Id and Conveyor-Header take any bytes for a message"
            ) from error


def query_reader(kind: type[msgspec.Struct]) -> Callable[[MultiMapping[str]], Any]:
    """Return a function that parses query parameters into a struct and raises RequestError (INVALID_REQUEST)."""
    hints = get_type_hints(kind)
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
    lists = {name: get_origin(hints[field]) is list for name, field in fields.items()}

    def read(given: MultiMapping[str]) -> Any:
        values = {name: _parameter(lists, name, given.getall(name)) for name in given}
        try:
            made = msgspec.convert(values, kind, strict=False, dec_hook=decode_field)
        except msgspec.ValidationError as error:
            what, where = explain(kind, error)
            name = re.findall(r"\w+", where)[0]
            raise _wrong(f"query parameter '{name}': {what}") from error
        for name in values:
            if getattr(made, fields[name]) is None:
                raise _wrong(f"query parameter '{name}' is null: leave it out instead")
        return made

    return read


def body_parser(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that parses a body into an endpoint's type and raises RequestError (INVALID_REQUEST)."""
    if kind is bytes:
        return bytes
    decode = decoder(kind).decode

    def parse(body: bytes) -> Any:
        try:
            decoded = decode(body or b"{}")
            if body:
                _check_names(body.decode())
        except msgspec.ValidationError as error:
            what, where = explain(kind, error)
            raise _wrong(f"in the request's body: {what} - at {where}".removesuffix(" - at ")) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _wrong(f"the request's body is not JSON: {error}") from error
        return decoded

    return parse


async def read_body(request: web.Request, limit_bytes: int, broker: BrokerNode, shares: AsyncExitStack) -> bytes:
    """Read and decompress the body. A large body waits for its share of the request budget, which `shares` releases.

    Raises RequestError: MESSAGE_TOO_LARGE, as early as possible; REQUEST_TOO_SLOW; UNSUPPORTED_COMPRESSION;
    INVALID_REQUEST for an invalid body.
    """
    if (request.content_length or 0) > limit_bytes:
        raise _too_large(limit_bytes)
    is_packed = "Content-Encoding" in request.headers and _encoding(request) != "identity"
    max_receive_ms = broker.settings.network.max_receive_ms
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(max_receive_ms / 1000) as deadline:

            async def make_room() -> None:
                deadline.reschedule(None)
                size_bytes = limit_bytes if is_packed else request.content_length or limit_bytes
                await shares.enter_async_context(broker.request_budget.hold(size_bytes))
                deadline.reschedule(loop.time() + max_receive_ms / 1000)

            if is_packed:
                return await _read_packed(request.content, _encoding(request), limit_bytes, make_room)
            return await _read_plain(request.content, limit_bytes, make_room)
    except TimeoutError as error:
        detail = f"the request's body did not arrive within {max_receive_ms} ms (network.max_receive_ms)"
        raise RequestError(ErrorKind.REQUEST_TOO_SLOW, detail) from error
    except web.RequestPayloadError as error:
        raise _wrong(f"the request's body cannot be read: {error}") from error


async def _read_plain(content: StreamReader, limit_bytes: int, make_room: MakeRoom) -> bytes:
    body = await content.readany()
    if content.at_eof() and len(body) <= limit_bytes:
        return body
    parts = [body]
    total, has_room = len(body), False
    while total <= limit_bytes and (part := await content.readany()):
        parts.append(part)
        total += len(part)
        if total > BEFORE_SHARE_BYTES and not has_room:
            await make_room()
            has_room = True
    if total > limit_bytes:
        raise _too_large(limit_bytes)
    return b"".join(parts)


def _encoding(request: web.Request) -> str:
    encoding = ", ".join(request.headers.getall("Content-Encoding")).lower()
    if encoding not in ENCODINGS:
        detail = f"Content-Encoding '{encoding}' is not supported: send one of {', '.join(ENCODINGS)}"
        raise RequestError(ErrorKind.UNSUPPORTED_COMPRESSION, detail)
    return encoding


async def _read_packed(content: StreamReader, encoding: str, limit_bytes: int, make_room: MakeRoom) -> bytes:
    decompressor = Decompressor(encoding, limit_bytes + 1)
    packed_size, has_room = 0, False
    try:
        while part := await content.readany():
            packed_size += len(part)
            if packed_size * _MAX_EXPANSION > SMALL_REQUEST_BYTES and not has_room:
                await make_room()
                has_room = True
            if max(packed_size, await _decompress(decompressor, part)) > limit_bytes:
                raise _too_large(limit_bytes)
        return decompressor.finish()
    except zlib.error as error:
        raise _wrong(f"the request's body is not valid {encoding}, which Content-Encoding names: {error}") from error


async def _decompress(decompressor: Decompressor, part: bytes) -> int:
    """Decompress a piece, on a thread if the result may be large, because zlib releases the interpreter's lock."""
    if len(part) * _MAX_EXPANSION <= SMALL_REQUEST_BYTES:
        return decompressor.feed(part)
    return await asyncio.get_running_loop().run_in_executor(None, decompressor.feed, part)


def _parameter(lists: Mapping[str, bool], name: str, values: list[str]) -> str | list[str]:
    if name not in lists:
        accepted = f"use one of {', '.join(sorted(lists))}" if lists else "this request takes none"
        raise _wrong(f"unknown query parameter '{name}': {accepted}")
    if lists[name]:
        return values
    if len(values) > 1:
        raise _wrong(f"query parameter '{name}' is given {len(values)} times: give it once")
    return values[0]


def _check_object(members: list[tuple[str, Any]]) -> None:
    """Refuse an object that gives a name twice: msgspec would take the last value. Raises RequestError."""
    if len(dict(members)) < len(members):
        name = Counter(name for name, _ in members).most_common(1)[0][0]
        raise _wrong(f"in the request's body: the name {name!r} is given more than once in an object")


_check_names = JSONDecoder(object_pairs_hook=_check_object, parse_int=str, parse_float=str, strict=False).decode
"""Check all objects of a document that msgspec has decoded."""


def _wrong(detail: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_REQUEST, detail)


def _too_large(limit_bytes: int) -> RequestError:
    return RequestError(
        ErrorKind.MESSAGE_TOO_LARGE, f"the request's body is larger than the limit of {limit_bytes} bytes"
    )
