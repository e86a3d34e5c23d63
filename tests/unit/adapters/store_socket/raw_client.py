"""A client of a served metadata store that sends what a test tells it to, and nothing by itself."""

import asyncio
import contextlib
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from conveyor.adapters.peers.peer_framing import LENGTH
from conveyor.adapters.store_socket import store_calls as calls
from conveyor.broker.remote.call_frames import Answered, Ask, Refused, Withdraw, decode_from_answerer, encode_frame
from conveyor.broker.remote.calls import Call
from tests.store_owner import KEY

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class RawClient:
    """Call `open` first; `close` at the end."""

    async def open(self, path: Path) -> "RawClient":
        self._call_ids = count(1)
        self._reader, self._writer = await asyncio.open_unix_connection(str(path))
        return self

    async def greet(self, path: Path, previous: int = 0) -> calls.Welcome | None:
        await self.open(path)
        return await self.ask(calls.GREET, calls.Greeting(KEY, previous))

    def send(self, call: Call[Request, Any], request: Request) -> int:
        """Return the id of the call."""
        call_id = next(self._call_ids)
        self.send_frame(Ask(call_id, call.name, 0, call.encode_request(request), None))
        return call_id

    def send_frame(self, frame: Ask | Withdraw) -> None:
        content = encode_frame(frame)
        self.send_bytes(LENGTH.pack(len(content)) + content)

    def send_bytes(self, content: bytes) -> None:
        self._writer.write(content)

    async def ask(self, call: Call[Request, Reply], request: Request) -> Reply:
        call_id = self.send(call, request)
        answer = await self.receive()
        assert isinstance(answer, Answered)
        assert answer.call_id == call_id
        return call.decode_reply(answer.payload)

    async def receive(self) -> Answered | Refused:
        (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return decode_from_answerer(await self._reader.readexactly(length))

    async def ended(self) -> None:
        """Return when the owner has closed the connection."""
        while True:
            try:
                if not await self._reader.read(1 << 16):
                    return
            except ConnectionError:
                return

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
