"""A client of a served metadata store that sends what a test tells it to, and nothing by itself."""

import asyncio
import contextlib
from pathlib import Path

from conveyor.adapters.peers.peer_framing import LENGTH
from conveyor.adapters.store_socket import store_frames as frames
from tests.store_owner import KEY


class RawClient:
    """Call `open` first; `close` at the end."""

    async def open(self, path: Path) -> "RawClient":
        self._reader, self._writer = await asyncio.open_unix_connection(str(path))
        return self

    async def greet(self, path: Path, previous: int = 0) -> frames.OwnerMessage:
        await self.open(path)
        return await self.ask(frames.Hello(KEY, previous))

    def send(self, *messages: frames.ClientMessage) -> None:
        for message in messages:
            content = frames.encode(message)
            self.send_bytes(LENGTH.pack(len(content)) + content)

    def send_bytes(self, content: bytes) -> None:
        self._writer.write(content)

    async def ask(self, message: frames.ClientMessage) -> frames.OwnerMessage:
        self.send(message)
        return await self.receive()

    async def receive(self) -> frames.OwnerMessage:
        (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return frames.owner_messages.decode(await self._reader.readexactly(length))

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
