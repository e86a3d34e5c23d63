"""An address, and a user, have a limited number of connections."""

import asyncio

import pytest

from conveyor.broker.clients.connection_counts import ConnectionOwner
from tests.unit.server.dialled_site import Site, answers, comes, ended, login, opened


async def test_one_connection_too_many_of_an_address_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(network__max_connections_per_address=2) as site:
        first, second = [await site.dial("PLAINTEXT") for _ in range(2)]
        third = await site.dial("PLAINTEXT")
        assert await ended(third[0]) == b""
        assert "more than 2 connections of 127.0.0.1 (network.max_connections_per_address)" in caplog.text
        first[1].close()
        await comes(lambda: open_connections(site, ConnectionOwner.ADDRESS, "127.0.0.1") == 1)
        for known in (second, await site.dial("PLAINTEXT")):
            assert await answers(known)


def open_connections(site: Site, owner: ConnectionOwner, name: str) -> int:
    return site.server.broker.clients.connection_counts.count(owner, name)


async def test_one_connection_too_many_of_a_user_is_closed_after_the_login(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(network__max_connections_per_user=1) as site:
        first = await site.log_in()
        second = await site.dial("SASL_PLAINTEXT", login("secret"))
        await ended(second[0])
        assert "more than 1 connections of alice (network.max_connections_per_user)" in caplog.text
        assert await answers(first)
        assert await answers(await site.dial("PLAINTEXT"))
        first[1].close()
        await comes(lambda: not open_connections(site, ConnectionOwner.USER, "alice"))
        assert await answers(await site.log_in())


async def first_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ConnectionResetError:
        return b""


async def test_connections_over_http_count_for_the_same_address() -> None:
    async with opened(network__max_connections_per_address=2) as site:
        assert await answers(await site.dial("PLAINTEXT"))
        address = site.server.http_address
        assert address is not None
        pairs = [await asyncio.open_connection(*address) for _ in range(2)]
        for _, writer in pairs:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        served = [await first_line(reader) for reader, _ in pairs]
        assert sorted(served) == [b"", b"HTTP/1.1 200 OK\r\n"]
        for _, writer in pairs:
            writer.close()
        await comes(lambda: open_connections(site, ConnectionOwner.ADDRESS, "127.0.0.1") == 1)
