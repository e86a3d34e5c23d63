"""The handshake of two brokers, as bytes: both prove that they know the secret of the cluster, and neither sends it.

    dialer                                                acceptor
    Hello(service, nonce, cluster, dialer, wanted)  --->
                                                    <---  Challenge(nonce, proof) or Refusal(reason)
    Proof(proof)                                    --->
                                                    <---  Welcome or Refusal(reason)
    frames                                          <-->  frames

    message    "CVPR", u8 version, u16 length, MessagePack, at most MESSAGE_BYTES
    proof      HMAC-SHA256(secret, role + the bytes of all messages before it)

Each proof covers the nonces of both sides, so a recorded handshake proves nothing later. It covers the role, so an
acceptor's proof cannot be sent back as a dialer's. It covers the wanted identity, which the acceptor compares with its
own, so a broker that dials an impostor cannot be made to answer its own challenge. The frames after the handshake are
neither encrypted nor signed.
"""

import hmac
import struct
from abc import ABC, abstractmethod
from typing import Annotated

import msgspec

from conveyor.kernel.errors import ConveyorError
from conveyor.kernel.peers import PeerCredentials, PeerIdentity, PeerService

PROTOCOL_VERSION = 1
NONCE_BYTES = 32
MESSAGE_BYTES = 1024
"""Maximum size of a message after its header."""

_HEADER = struct.Struct(">4sBH")
_MAGIC = b"CVPR"
_ACCEPTOR, _DIALER = b"acceptor of a link between brokers", b"dialer of a link between brokers"
_REASON_CHARACTERS = 200

Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class HandshakeFailed(ConveyorError):  # noqa: N818 - named for what it is
    """The peer is not a broker of this cluster, or not the wanted one. reply: the bytes to send before closing."""

    def __init__(self, reason: str, reply: bytes = b"") -> None:
        super().__init__(reason)
        self.reply = reply


class _Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    service: PeerService
    nonce: Nonce
    cluster_id: str
    dialer: PeerIdentity
    wanted: PeerIdentity


class _Challenge(msgspec.Struct, frozen=True, array_like=True, tag="challenge"):
    nonce: Nonce
    proof: bytes


class _Proof(msgspec.Struct, frozen=True, array_like=True, tag="proof"):
    proof: bytes


class _Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    pass


class _Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refusal"):
    reason: str


_Message = _Hello | _Challenge | _Proof | _Welcome | _Refusal
_decoder: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)


class _Handshake(ABC):
    """One side. It answers each received message, and keeps the bytes of all messages for the proofs.

    rest: the received bytes that follow the last message taken, or the handshake once it is done.
    """

    def __init__(self, nonce: bytes) -> None:
        self.is_done = False
        self.rest = b""
        self._nonce = nonce
        self._transcript = b""
        self._before = b""
        """The transcript without the last message taken."""

    def receive(self, data: bytes) -> bytes:
        """Return the bytes to send. Raises HandshakeFailed."""
        self.rest += data
        reply = b""
        while not self.is_done and (message := self._take()) is not None:
            reply += self._answer(message)
        return reply

    @abstractmethod
    def _answer(self, message: _Message) -> bytes: ...

    def _take(self) -> _Message | None:
        """Return the next message, or None if it is incomplete. Raises HandshakeFailed."""
        size = self._size()
        if size is None or len(self.rest) < size:
            return None
        content, self.rest = self.rest[:size], self.rest[size:]
        self._before = self._transcript
        self._transcript += content
        try:
            return _decoder.decode(content[_HEADER.size :])
        except (ValueError, RecursionError) as error:  # Of msgspec, but also UnicodeDecodeError.
            raise HandshakeFailed(f"the peer sent a malformed message: {_shown(str(error))}") from error

    def _size(self) -> int | None:
        """Return the size of the next message, or None if its header is incomplete. Raises HandshakeFailed."""
        header = self.rest[: _HEADER.size]
        if header[:4] != _MAGIC[: len(header)]:
            raise HandshakeFailed("the peer is not a broker")
        if len(header) < _HEADER.size:
            return None
        _, version, length = _HEADER.unpack(header)
        if version != PROTOCOL_VERSION:
            reason = f"version {version} of the protocol between brokers meets version {PROTOCOL_VERSION}"
            raise HandshakeFailed(reason, encode(_Refusal(reason)))
        if length > MESSAGE_BYTES:
            raise HandshakeFailed(f"the peer sent a message of {length} bytes")
        return int(_HEADER.size + length)

    def _sent(self, message: bytes) -> bytes:
        """Note a message that is sent, and return it."""
        self._transcript += message
        return message


class AcceptorHandshake(_Handshake):
    """The side that was dialled. credentials: None if this broker has not joined its cluster yet."""

    def __init__(self, credentials: PeerCredentials | None, nonce: bytes) -> None:
        super().__init__(nonce)
        self.peer: PeerIdentity | None = None
        self.service = PeerService.REPLICATION
        self._credentials = credentials
        self._hello: _Hello | None = None

    def begin(self) -> bytes:
        """Return the bytes to send first: none."""
        return b""

    def _answer(self, message: _Message) -> bytes:
        if self._credentials is None:
            raise _refusal("this broker has not joined its cluster yet")
        if isinstance(message, _Hello) and self._hello is None:
            return self._challenge(message, self._credentials)
        if isinstance(message, _Proof) and self._hello is not None:
            return self._welcome(message, self._hello, self._credentials)
        raise HandshakeFailed("the peer sent a message out of turn")

    def _challenge(self, hello: _Hello, credentials: PeerCredentials) -> bytes:
        own = credentials.identity()
        if hello.cluster_id != credentials.cluster_id:
            raise _refusal(f"this broker belongs to cluster {credentials.cluster_id}, not {_shown(hello.cluster_id)}")
        if hello.dialer.node_id == own.node_id:
            raise _refusal(f"this broker, too, has node id {own.node_id}")
        if hello.wanted != own:
            raise _refusal(f"this broker is start {own.incarnation} of broker {own.node_id}")
        self._hello = hello
        proof = _prove(credentials, _ACCEPTOR, self._transcript + self._nonce)
        return self._sent(encode(_Challenge(self._nonce, proof)))

    def _welcome(self, message: _Proof, hello: _Hello, credentials: PeerCredentials) -> bytes:
        expected = _prove(credentials, _DIALER, self._before)
        if not hmac.compare_digest(message.proof, expected):
            raise _refusal("the peer does not know the secret of the cluster")
        self.peer, self.service = hello.dialer, hello.service
        self.is_done = True
        return encode(_Welcome())


class DialerHandshake(_Handshake):
    """The side that dials."""

    def __init__(self, credentials: PeerCredentials, wanted: PeerIdentity, service: PeerService, nonce: bytes) -> None:
        super().__init__(nonce)
        self.peer = wanted
        self.service = service
        self._credentials = credentials
        self._is_answered = False

    def begin(self) -> bytes:
        """Return the bytes to send first."""
        credentials = self._credentials
        hello = _Hello(self.service, self._nonce, credentials.cluster_id, credentials.identity(), self.peer)
        return self._sent(encode(hello))

    def _answer(self, message: _Message) -> bytes:
        if isinstance(message, _Refusal):
            raise HandshakeFailed(f"refused: {_shown(message.reason)}")
        if isinstance(message, _Challenge) and not self._is_answered:
            return self._prove_too(message)
        if isinstance(message, _Welcome) and self._is_answered:
            self.is_done = True
            return b""
        raise HandshakeFailed("the peer sent a message out of turn")

    def _prove_too(self, challenge: _Challenge) -> bytes:
        expected = _prove(self._credentials, _ACCEPTOR, self._before + challenge.nonce)
        if not hmac.compare_digest(challenge.proof, expected):
            raise HandshakeFailed("the peer does not know the secret of the cluster")
        self._is_answered = True
        return self._sent(encode(_Proof(_prove(self._credentials, _DIALER, self._transcript))))


def encode(message: _Message) -> bytes:
    """Return a message with its header."""
    content = msgspec.msgpack.encode(message)
    return _HEADER.pack(_MAGIC, PROTOCOL_VERSION, len(content)) + content


def _prove(credentials: PeerCredentials, role: bytes, transcript: bytes) -> bytes:
    return hmac.digest(credentials.secret, role + transcript, "sha256")


def _refusal(reason: str) -> HandshakeFailed:
    return HandshakeFailed(reason, encode(_Refusal(reason)))


def _shown(text: str) -> str:
    """Return text of a peer that is not trusted as it may be logged."""
    return repr(text[:_REASON_CHARACTERS])
