"""An encrypting transport for protocols of asyncio.

A protocol gets its connection at once, so that it can limit the time and the number of handshakes, and receives bytes
after the handshake. The transport of asyncio itself shows a connection only after its handshake.
"""

import asyncio
import ssl
from typing import Any, cast

from conveyor.adapters.tls.tls_channel import TlsChannel, TlsFailed


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """See the module's docstring. It is the protocol of the connection, and the transport of `user`.

    get_extra_info("tls") is the `TlsChannel`; the rest is the connection's. host: see `TlsChannel`.
    """

    def __init__(
        self, context: ssl.SSLContext, user: asyncio.Protocol, *, is_server: bool, host: str | None = None
    ) -> None:
        super().__init__()
        self._channel = TlsChannel(context, is_server=is_server, host=host)
        self._user = user
        self._connection: asyncio.Transport
        self._failure: TlsFailed | None = None
        self._is_closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection = cast("asyncio.Transport", transport)
        self._channel.begin()
        self._flush()
        self._user.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        was_open = self._channel.is_open
        try:
            plain = self._channel.receive(data)
        except TlsFailed as failure:
            return self._fail(failure)
        self._flush()
        if not was_open and self._channel.is_open:
            self.handshake_ended()
        if plain and not self._is_closing:
            self._user.data_received(plain)
        if self._channel.is_ended and not self.is_closing() and not self._user.eof_received():
            self.close()

    def handshake_ended(self) -> None:
        """Called before the user receives the first bytes; may close the connection. Nothing to do here."""

    def eof_received(self) -> bool | None:
        """Close the connection without telling the user of an end: it may have been cut on the way to the peer."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._user.connection_lost(exc if self._failure is None else self._failure)

    def pause_writing(self) -> None:
        self._user.pause_writing()

    def resume_writing(self) -> None:
        self._user.resume_writing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        try:
            self._channel.send(data)
        except TlsFailed as failure:
            return self._fail(failure)
        self._flush()

    def close(self) -> None:
        """End the connection after what is written."""
        if not self._is_closing:
            self._is_closing = True
            self._channel.close()
            self._flush()
            self._connection.close()

    def abort(self) -> None:
        self._is_closing = True
        self._connection.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._connection.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._channel.waiting_bytes + self._connection.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._connection.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        self._connection.resume_reading()

    def is_reading(self) -> bool:
        return self._connection.is_reading()

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._channel if name == "tls" else self._connection.get_extra_info(name, default)

    def _flush(self) -> None:
        encrypted = self._channel.take_encrypted()
        if encrypted:
            self._connection.write(encrypted)

    def _fail(self, failure: TlsFailed) -> None:
        """End the connection, after the alert that tells the peer why."""
        self._failure = failure
        self._is_closing = True
        self._flush()
        self._connection.close()
