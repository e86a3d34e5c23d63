"""Two brokers, and limits of time that are over at once."""

from collections.abc import AsyncIterator

import pytest

from conveyor.adapters.peers import peer_connection, tcp_peer_network
from tests.unit.adapters.peers.nodes import Node, running


@pytest.fixture
async def one() -> AsyncIterator[Node]:
    async with running(1) as node:
        yield node


@pytest.fixture
async def two() -> AsyncIterator[Node]:
    async with running(2) as node:
        yield node


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all limits of time."""
    monkeypatch.setattr(tcp_peer_network, "HANDSHAKE_LIMIT_S", 0.2)
    monkeypatch.setattr(tcp_peer_network, "_CHECK_S", 0.05)
    monkeypatch.setattr(peer_connection, "PEER_SILENCE_LIMIT_S", 0.2)
