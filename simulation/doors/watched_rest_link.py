"""A connection to a broker's HTTP door whose requests are watched at the broker, one at a time."""

import asyncio
from collections.abc import Callable

from simulation.doors.kafka_link import Watch
from simulation.doors.rest_link import RestAnswer, RestLink, next_answer
from simulation.ledger import InvariantBroken


class WatchedRestLink(RestLink):
    """See the module's docstring. broken: takes a broken invariant that the broker's side of the connection shows."""

    def __init__(self, broken: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._broken = broken
        self._watch: Watch | None = None
        self._unarrived_bytes = 0
        self._leaving = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport.other.tap = self

    async def ask(self, method: str, path: str, document: object, login: tuple[str, str], watch: Watch) -> RestAnswer:
        """Ask the broker, or never. Raises Disconnected."""
        self._watch = watch
        return await self.send(method, path, document, login)

    def _write(self, request: bytes) -> None:
        self._unarrived_bytes += len(request)
        super()._write(request)

    def arriving(self, count: int) -> None:
        self._unarrived_bytes -= count
        if self._unarrived_bytes == 0 and self._watch is not None:
            self._watch.arrived()

    def leaving(self, data: bytes) -> None:
        self._leaving += data
        while (found := next_answer(self._leaving)) is not None:
            answer, self._leaving, _ = found
            watch, self._watch = self._watch, None
            if watch is not None:
                try:
                    watch.answered(answer)
                except InvariantBroken as broken:
                    self._broken(broken)
