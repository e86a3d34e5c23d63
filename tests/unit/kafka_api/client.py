"""A Kafka client without a socket: one connection to a broker on the same event loop."""

import asyncio
from typing import Any

from conveyor.broker.broker_node import BrokerNode
from conveyor.kafka_api.registry import handlers
from conveyor.kafka_api.wire.call import Part
from conveyor.kafka_api.wire.connection import KafkaConnection
from conveyor.kafka_api.wire.framing import FrameDecoder
from conveyor.kernel.access.caller import ANONYMOUS, PLAINTEXT, Caller
from conveyor.kernel.ports import FileSlice
from tests.unit.kafka_api.requests import framed, request, response


class MemoryClient:
    """Sends frames and collects the responses, in order. listener: the name of the one that it has dialled."""

    def __init__(self, broker: BrokerNode, listener: str = PLAINTEXT) -> None:
        self.broker = broker
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.failures: list[str] = []
        """The reason for which a connection with a socket would have been closed."""
        caller = Caller(ANONYMOUS, "client.example", listener, next(broker.clients.connection_numbers))
        self.connection = KafkaConnection(broker, handlers(broker), caller, self._take, failed=self.failures.append)
        self._decoder = FrameDecoder(1 << 30)

    def send(self, *frames: bytes) -> None:
        self.connection.receive(b"".join(map(framed, frames)))

    async def answered_ids(self) -> list[int]:
        """Return the correlation ids of all responses received by the end of this tick."""
        await self.broker.partitions.tick.end()
        return [correlation_id(self.answers.get_nowait()) for _ in range(self.answers.qsize())]

    async def next_id(self) -> int:
        """Wait for the next response and return its correlation id."""
        return correlation_id(await self.answers.get())

    async def ask(self, api_key: int, version: int, **values: Any) -> Any:
        """Send a request and return the body of its response."""
        self.send(request(api_key, version, **values))
        return response(api_key, version, await self.answers.get())

    def _take(self, parts: list[Part]) -> None:
        for frame in self._decoder.feed(b"".join(map(_content, parts))):
            self.answers.put_nowait(bytes(frame))
        self.connection.resume()


def correlation_id(frame: bytes) -> int:
    return int.from_bytes(frame[:4], "big")


def _content(part: Part) -> bytes:
    return part.file.read(part.position, part.length) if isinstance(part, FileSlice) else part
