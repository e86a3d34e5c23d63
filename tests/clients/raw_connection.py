"""A TCP connection to a broker that sends requests without waiting for responses, and nothing by itself."""

import socket
import struct
from collections.abc import Mapping
from typing import Any

from tests.unit.kafka_api.requests import framed, request, response

Asked = tuple[int, dict[str, Any]]
"""The key of an API, and the fields of a request by kio's names."""


class RawConnection:
    """versions: the version of each API, by key."""

    def __init__(self, address: str, versions: Mapping[int, int]) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._versions = versions

    def pipeline(self, *asked: Asked) -> list[Any]:
        """Send all requests at once, and return the bodies of their responses."""
        versions = self._versions
        requests = (request(key, versions[key], number, **values) for number, (key, values) in enumerate(asked))
        self._socket.sendall(b"".join(map(framed, requests)))
        return [response(key, versions[key], self._frame()) for key, _ in asked]

    def close(self) -> None:
        self._socket.close()

    def _frame(self) -> bytes:
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            assert part, "the broker has closed the connection"
            received += part
        return received
