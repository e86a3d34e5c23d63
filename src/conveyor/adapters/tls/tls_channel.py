"""One end of a TLS connection, as bytes: encrypted ones in and out, plain ones out and in.

    handshaking ---> open ---> ended          ended: the peer has closed its side, or the handshake has failed

Plain bytes that are sent during the handshake wait for its end. The caller bounds them.
"""

import ssl
from contextlib import suppress

from conveyor.kernel.errors import ConveyorError

_RECORD_BYTES = 1 << 14
"""The most plain bytes in a record of TLS. Source: RFC 8446, 5.1."""


class TlsFailed(ConveyorError):  # noqa: N818 - named for what it is
    """The peer speaks no TLS, or another one, or a record was changed on its way."""


class TlsChannel:
    """See the module's docstring. is_server: this end was dialled."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        self.is_open = False
        self.is_ended = False
        """The peer sends no more."""
        self.waiting_bytes = 0
        """The plain bytes that wait for the end of the handshake."""
        self._waiting: list[bytes] = []
        self._received = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=is_server)

    @property
    def version(self) -> str:
        """The version of TLS, as `TLSv1.3`; empty during the handshake."""
        return self._tls.version() or ""

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate of the peer (DER); None if it has sent none, or during the handshake."""
        return self._tls.getpeercert(True) if self.is_open else None

    def begin(self) -> None:
        """Begin the handshake: a client has bytes to send now."""
        self._shake()

    def receive(self, encrypted: bytes) -> bytes:
        """Return the plain bytes of the records that are complete. Raises TlsFailed; then the alert is to be sent."""
        self._received.write(encrypted)
        if not self.is_open:
            self._shake()
        if not self.is_open or self.is_ended:
            return b""
        chunks = []
        try:
            while self._received.pending or self._tls.pending():
                chunk = self._tls.read(_RECORD_BYTES)
                if not chunk:
                    self.is_ended = True
                    break
                chunks.append(chunk)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise _failed(error) from error
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def send(self, plain: bytes | bytearray | memoryview) -> None:
        """Encrypt plain bytes, or keep them until the handshake has ended. Raises TlsFailed."""
        if not self.is_open:
            self.waiting_bytes += len(plain)
            self._waiting.append(bytes(plain))
        elif plain:
            try:
                self._tls.write(plain)
            except ssl.SSLError as error:
                raise _failed(error) from error

    def close(self) -> None:
        """Tell the peer that nothing follows."""
        if self.is_open:
            with suppress(ssl.SSLError):  # It would wait for the peer's own end, or the connection is broken.
                self._tls.unwrap()

    def take_encrypted(self) -> bytes:
        """Return the bytes to send to the peer."""
        return self._to_send.read()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except (ssl.SSLError, ValueError) as error:  # ValueError: a name of a peer's certificate that is not UTF-8.
            raise _failed(error) from error
        self.is_open = True
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        for plain in waiting:
            self.send(plain)


def _failed(error: Exception) -> TlsFailed:
    reason = getattr(error, "reason", None)
    return TlsFailed(f"TLS has failed: {(reason or str(error)).lower().replace('_', ' ')}")
