"""One end of a TLS connection, as bytes: encrypted ones in and out, plain ones out and in.

    handshaking ---> open ---> ended          ended: the peer has closed its side, or the handshake has failed

Plain bytes that are sent during the handshake wait for its end. The caller bounds them.

Limits: a record without plain bytes, such as an update of the keys, costs its receiver much and its sender nothing. A
peer may send EMPTY_RECORDS of them, and one more for each EMPTY_RECORD_BYTES. OpenSSL bounds the handshake.
"""

import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from conveyor.kernel.errors import ConveyorError
from conveyor.kernel.ports import Bytes

EMPTY_RECORDS = 32
EMPTY_RECORD_BYTES = 1 << 20

_HEADER_BYTES = 5
"""Of a record: its kind, the version (2 bytes), the length of what follows (2). Source: RFC 8446, 5.1."""
_KINDS = range(20, 24)
_MAJOR_VERSION = 3
_PLAIN_BYTES = 1 << 14
"""The most plain bytes in a record. One call reads those of one record."""
_ENCRYPTED_BYTES = _PLAIN_BYTES + 256
_RECORDS_AT_ONCE = 256


class TlsFailed(ConveyorError):  # noqa: N818 - named for what it is
    """The peer speaks no TLS, or another one, or a record was changed on its way, or it sends too many empty ones."""


class TlsChannel:
    """See the module's docstring. is_server: this end was dialled.

    host: the name or the address that the server's certificate has to be valid for, if the context checks that. Raises
    ValueError for one that no certificate can have.
    """

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, host: str | None = None) -> None:
        self.is_open = False
        self.is_ended = False
        """The peer sends no more."""
        self.waiting_bytes = 0
        """The plain bytes that wait for the end of the handshake."""
        self._waiting: list[bytes] = []
        self._incomplete = b""
        """The part of a record that has arrived."""
        self._empty_records = self._plain_bytes = 0
        self._received = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=is_server, server_hostname=host)

    @property
    def version(self) -> str:
        """The version of TLS, as `TLSv1.3`; empty during the handshake."""
        return self._tls.version() or ""

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate of the peer (DER); None if it has sent none, or during the handshake."""
        return self._tls.getpeercert(True) if self.is_open else None

    @property
    def peer_details(self) -> dict[str, Any]:
        """The fields of the peer's certificate, as `ssl.SSLSocket.getpeercert` returns them, if it was verified."""
        return (self._tls.getpeercert() or {}) if self.is_open else {}

    def begin(self) -> None:
        """Begin the handshake: a client has bytes to send now."""
        self._shake()

    def receive(self, encrypted: bytes) -> bytes:
        """Return the plain bytes of the records that are complete. Raises TlsFailed; then the alert is to be sent.

        Clients write records of a kilobyte, too, so a record must cost little.
        """
        room = memoryview(bytearray(len(self._incomplete) + len(encrypted)))
        end = 0
        for records, count in self._records(encrypted):
            self._received.write(records)
            was_open = self.is_open
            if not was_open:
                self._shake()
            if not self.is_open:
                continue
            start = end
            read_count, end = self._read(room, start)
            if self.is_ended:
                break
            if was_open:
                self._note_empty(count - read_count, end - start)
        return bytes(room[:end])

    def send(self, plain: Bytes) -> None:
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

    def _records(self, encrypted: bytes) -> Iterator[tuple[memoryview, int]]:
        """Yield some complete records at a time, and their number. Raises TlsFailed for what is no record of TLS."""
        content = memoryview(self._incomplete + encrypted)
        start = end = count = 0
        while end + _HEADER_BYTES <= len(content):
            length = content[end + 3] << 8 | content[end + 4]
            if content[end] not in _KINDS or content[end + 1] != _MAJOR_VERSION or length > _ENCRYPTED_BYTES:
                raise TlsFailed("TLS has failed: the peer does not speak it")
            if end + _HEADER_BYTES + length > len(content):
                break
            end, count = end + _HEADER_BYTES + length, count + 1
            if count == _RECORDS_AT_ONCE:
                yield content[start:end], count
                start, count = end, 0
        if count:
            yield content[start:end], count
        self._incomplete = bytes(content[end:])

    def _read(self, room: memoryview, end: int) -> tuple[int, int]:
        """Add the plain bytes that have arrived, from `end` on. Returns the number of their records, and the end."""
        read: Any = self._tls.read  # With a buffer it returns a number.
        count = 0
        try:
            while size := read(_PLAIN_BYTES, room[end:]):
                end += size
                count += 1
            self.is_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise _failed(error) from error
        return count, end

    def _note_empty(self, empty_records: int, plain_bytes: int) -> None:
        self._empty_records += empty_records
        self._plain_bytes += plain_bytes
        if self._empty_records > EMPTY_RECORDS + self._plain_bytes // EMPTY_RECORD_BYTES:
            raise TlsFailed("TLS has failed: the peer sends records without content")

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
    reason = (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
    why = f": {error.verify_message}" if isinstance(error, ssl.SSLCertVerificationError) else ""
    return TlsFailed(f"TLS has failed: {reason}{why}")
