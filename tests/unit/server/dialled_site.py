"""A server in memory with a listener whose clients log in and one without users, and connections to them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from conveyor.server.server import Server
from conveyor.testing.broker_security import password_change
from tests.callers import CALLER
from tests.unit.adapters.client_contexts import client_context
from tests.unit.kafka_api.requests import API_VERSIONS, SOFTWARE, framed, request
from tests.unit.server.memory_server import running, server

HANDSHAKE, AUTHENTICATE = 17, 36
PING = framed(request(API_VERSIONS, 3, **SOFTWARE))
PLAIN = framed(request(HANDSHAKE, 1, mechanism="PLAIN"))
SALT = b"some salt"

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def login(password: str) -> bytes:
    return PLAIN + framed(request(AUTHENTICATE, 2, auth_bytes=f"\0alice\0{password}".encode()))


class Site:
    """A server with a listener whose clients log in, and one without users. The user alice has the password secret."""

    def __init__(self, made: Server) -> None:
        self.server = made
        self._writers: list[asyncio.StreamWriter] = []

    async def dial(self, listener: str, *sent: bytes, by_tls: bool = False) -> Pair:
        """Return a connection that the server has accepted."""
        address = next(each.address for each in self.server.listeners.kafka if each.name == listener)
        opened = self.server._probe.connections_opened
        context, name = (client_context(), "broker") if by_tls else (None, None)
        reader, writer = await asyncio.open_connection(*address, ssl=context, server_hostname=name)
        self._writers.append(writer)
        await comes(lambda: self.server._probe.connections_opened > opened)
        writer.write(b"".join(sent))
        return reader, writer

    async def log_in(self) -> Pair:
        reader, writer = await self.dial("SASL_PLAINTEXT", login("secret"))
        for _ in range(2):
            await frame(reader)
        return reader, writer

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def opened(**settings: object) -> AsyncIterator[Site]:
    listeners: dict[str, object] = {"network__kafka": "127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"}
    async with running(server(None, **listeners | settings)) as made:
        await made.broker.clients.credentials.alter(CALLER, [password_change("alice", "secret", SALT)])
        site = Site(made)
        yield site
        site.close()


async def frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Wait until the broker closes or resets the connection. Returns what it sends until then."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def comes(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def answers(pair: Pair) -> bool:
    """Return whether the connection is served."""
    pair[1].write(PING)
    return bool(await frame(pair[0]))
