"""A target that sends the bytes that a test gives it, over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from conveyor.broker.queues.pushing.push_client import PushRequest
from conveyor.queues.push.push_url import PushUrl

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_target(talk: Talk) -> AsyncIterator[int]:
    """Serve each connection by a function. Yields the port."""
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[list[str], bytes]:
    """Return the lines of the head of a request, and its body. Raises IncompleteReadError at the end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
    sizes = [line.partition(": ")[2] for line in head if line.startswith("content-length: ")]
    return head, await reader.readexactly(int(sizes[0]))


def answering(*answers: bytes, closes: bool = False) -> Talk:
    """Give one answer to each request of a connection, then wait until the other side closes it."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for answer in answers:
                await read_request(reader)
                writer.write(answer)
                await writer.drain()
            if not closes:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # The test has ended.
        finally:
            writer.close()

    return talk


def request(
    port: int, *, host: str = "127.0.0.1", allows_private: bool = True, is_encrypted: bool = False
) -> PushRequest:
    return PushRequest(
        url=PushUrl(is_encrypted, host, port, "/hook?x=1"),
        headers=(("ce-id", "1"),),
        body=b"hello",
        allows_private=allows_private,
    )
