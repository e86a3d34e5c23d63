"""A REST client of one connection, and what a broker has used of its machine."""

import json
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any

import psutil

from tests.processes import BrokerProcess


class RestClient:
    """One keep-alive connection; `ask` fails on any status but success, where none is named."""

    def __init__(self, broker: BrokerProcess) -> None:
        host, _, port = broker.http.rpartition(":")
        self._connection = HTTPConnection(host, int(port), timeout=600)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """body: bytes as they are, anything else as JSON. Returns the answer's document."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self._connection.request(method, path, content, dict(headers or {}))
        answer = self._connection.getresponse()
        told = answer.read()
        assert answer.status == status if status else answer.status < 300, told
        return json.loads(told) if told else None

    def close(self) -> None:
        self._connection.close()


def cpu_seconds(broker: BrokerProcess) -> float:
    """CPU time since its start, which other work on the machine does not change."""
    times = psutil.Process(broker.pid).cpu_times()
    return float(times.user + times.system)


def resident_bytes(broker: BrokerProcess) -> int:
    return int(psutil.Process(broker.pid).memory_info().rss)
