"""A TCP tap in front of a broker: keeps the first request that comes for each API and version."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from socketserver import BaseRequestHandler, ThreadingTCPServer
from struct import Struct
from typing import Self

from conveyor.testing import Broker

_HEADER = Struct(">hhih")
Kept = dict[tuple[int, int], bytes]


class Tap(ThreadingTCPServer):
    """Listens from the start; `target` has to be set before the first client comes.

    client_id: whose requests to keep.
    """

    daemon_threads = True

    def __init__(self, client_id: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passage)
        self._client_id = client_id.encode()
        self.target: tuple[str, int] = ("", 0)
        self.kept: Kept = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def keep(self, frame: bytes) -> None:
        key, version, _, length = _HEADER.unpack_from(frame)
        if frame[_HEADER.size : _HEADER.size + length] == self._client_id:
            self.kept.setdefault((key, version), frame)


class _Passage(BaseRequestHandler):
    """One client's connection, and the one that is made for it."""

    def handle(self) -> None:
        tap = self.server
        assert isinstance(tap, Tap)
        with socket.create_connection(tap.target) as onward:
            back = threading.Thread(target=_copy, args=(onward, self.request.sendall), daemon=True)
            back.start()
            pending = bytearray()

            def forward(data: bytes) -> None:
                pending.extend(data)
                while len(pending) >= 4 and len(pending) >= (end := 4 + int.from_bytes(pending[:4], "big")):
                    tap.keep(bytes(pending[4:end]))
                    del pending[:end]
                onward.sendall(data)

            _copy(self.request, forward)
            onward.shutdown(socket.SHUT_WR)
            back.join()


def _copy(source: socket.socket, give: Callable[[bytes], None]) -> None:
    """Until either side is gone."""
    try:
        while data := source.recv(65536):
            give(data)
    except OSError:
        return


class TappedBroker(Broker):
    """A broker that clients reach through a tap alone."""

    def __init__(self, tap: Tap, settings: Mapping[str, object]) -> None:
        super().__init__(memory=True, settings={**settings, "network.advertised": tap.address})
        self._tap = tap

    def start(self) -> Self:
        super().start()
        host, _, port = super().bootstrap_servers.rpartition(":")
        self._tap.target = host, int(port)
        return self

    @property
    def bootstrap_servers(self) -> str:
        return self._tap.address


@contextmanager
def tapped_broker(client_id: str, settings: Mapping[str, object]) -> Iterator[tuple[TappedBroker, Kept]]:
    """The broker, and what one client sends it, first of each kind."""
    with Tap(client_id) as tap:
        with TappedBroker(tap, settings) as broker:
            yield broker, tap.kept
        tap.shutdown()
