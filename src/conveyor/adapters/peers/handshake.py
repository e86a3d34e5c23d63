"""The handshake of two brokers inside TLS, as bytes: both prove that they know the secret of the cluster.

    dialer                                                           acceptor
    Hello(nonce)                                               --->
                                                               <---  Challenge(nonce, proof) or Refusal(reason)
    Claim(cluster, service, dialer, wanted), Proof(proof)      --->
                                                               <---  Welcome or Refusal(reason)
    frames                                                     <-->  frames

    message    "CVPR", u8 version, u16 length, MessagePack, at most MESSAGE_BYTES
    proof      HMAC-SHA256(secret, role + SHA-256 of the acceptor's certificate + the bytes of all messages before it)

The acceptor makes its certificate at its start and signs it itself. The proofs cover the certificate as each side knows
it: if a third party between the two terminates TLS, the dialer sees another certificate than the acceptor's, and no
proof holds (a channel binding; the hash is `tls-server-end-point` of RFC 5929). So the secret authenticates the
encrypted connection, and with it the frames after the handshake.

Each proof covers the nonces of both sides, so a recorded handshake proves nothing later. It covers the role, so an
acceptor's proof cannot be sent back as a dialer's. Either side says who it is only after the other one's proof: a
stranger learns nothing of the cluster. The dialer says whom it wants, and the acceptor compares it with itself.
"""

import hmac
import struct
from abc import ABC, abstractmethod
from hashlib import sha256
from typing import Annotated

import msgspec

from conveyor.kernel.errors import ConveyorError
from conveyor.kernel.peers import PeerCredentials, PeerIdentity, PeerService

PROTOCOL_VERSION = 2
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
    nonce: Nonce


class _Challenge(msgspec.Struct, frozen=True, array_like=True, tag="challenge"):
    nonce: Nonce
    proof: bytes


class _Claim(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    cluster_id: str
    service: PeerService
    dialer: PeerIdentity
    wanted: PeerIdentity


class _Proof(msgspec.Struct, frozen=True, array_like=True, tag="proof"):
    proof: bytes


class _Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    pass


class _Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refusal"):
    reason: str


_Message = _Hello | _Challenge | _Claim | _Proof | _Welcome | _Refusal
_decoder: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)


class _Handshake(ABC):
    """One side. It answers each received message, and keeps the bytes of all messages for the proofs.

    certificate: the acceptor's (DER). The dialer takes it from TLS, before it passes on what it receives.
    rest: the received bytes that follow the last message taken, or the handshake once it is done.
    """

    def __init__(self, certificate: bytes | None, nonce: bytes) -> None:
        self.certificate = certificate
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
            if isinstance(message, _Refusal):
                raise HandshakeFailed(f"refused: {_shown(message.reason)}")
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

    def _prove(self, credentials: PeerCredentials, role: bytes, transcript: bytes) -> bytes:
        """Return a proof; see the module's docstring. Raises HandshakeFailed without a certificate."""
        if not self.certificate:
            raise HandshakeFailed("the peer has shown no certificate")
        return hmac.digest(credentials.secret, role + sha256(self.certificate).digest() + transcript, "sha256")

    def _sent(self, message: bytes) -> bytes:
        """Note a message that is sent, and return it."""
        self._transcript += message
        return message


class AcceptorHandshake(_Handshake):
    """The side that was dialled. credentials: None if this broker has not joined its cluster yet."""

    def __init__(self, credentials: PeerCredentials | None, certificate: bytes, nonce: bytes) -> None:
        super().__init__(certificate, nonce)
        self.peer: PeerIdentity | None = None
        self.service = PeerService.REPLICATION
        self._credentials = credentials
        self._is_asked = False
        self._claim: _Claim | None = None

    def begin(self) -> bytes:
        """Return the bytes to send first: none."""
        return b""

    def _answer(self, message: _Message) -> bytes:
        if self._credentials is None:
            raise refusal("this broker has not joined its cluster yet")
        if isinstance(message, _Hello) and not self._is_asked:
            self._is_asked = True
            proof = self._prove(self._credentials, _ACCEPTOR, self._transcript + self._nonce)
            return self._sent(encode(_Challenge(self._nonce, proof)))
        if isinstance(message, _Claim) and self._is_asked and self._claim is None:
            self._claim = message
            return b""
        if isinstance(message, _Proof) and self._claim is not None:
            return self._welcome(message, self._claim, self._credentials)
        raise HandshakeFailed("the peer sent a message out of turn")

    def _welcome(self, message: _Proof, claim: _Claim, credentials: PeerCredentials) -> bytes:
        expected = self._prove(credentials, _DIALER, self._before)
        if not hmac.compare_digest(message.proof, expected):
            raise refusal("the peer does not know the secret of the cluster")
        own = credentials.identity()
        if claim.cluster_id != credentials.cluster_id:
            raise refusal(f"this broker belongs to cluster {credentials.cluster_id}, not {_shown(claim.cluster_id)}")
        if claim.dialer.node_id == own.node_id:
            raise refusal(f"this broker, too, has node id {own.node_id}")
        if claim.wanted != own:
            raise refusal(f"this broker is start {own.incarnation} of broker {own.node_id}")
        self.peer, self.service = claim.dialer, claim.service
        self.is_done = True
        return encode(_Welcome())


class DialerHandshake(_Handshake):
    """The side that dials."""

    def __init__(self, credentials: PeerCredentials, wanted: PeerIdentity, service: PeerService, nonce: bytes) -> None:
        super().__init__(None, nonce)
        self.peer = wanted
        self.service = service
        self._credentials = credentials
        self._is_answered = False

    def begin(self) -> bytes:
        """Return the bytes to send first."""
        return self._sent(encode(_Hello(self._nonce)))

    def _answer(self, message: _Message) -> bytes:
        if isinstance(message, _Challenge) and not self._is_answered:
            return self._prove_too(message)
        if isinstance(message, _Welcome) and self._is_answered:
            self.is_done = True
            return b""
        raise HandshakeFailed("the peer sent a message out of turn")

    def _prove_too(self, challenge: _Challenge) -> bytes:
        credentials = self._credentials
        expected = self._prove(credentials, _ACCEPTOR, self._before + challenge.nonce)
        if not hmac.compare_digest(challenge.proof, expected):
            raise HandshakeFailed("the peer does not know the secret of the cluster")
        self._is_answered = True
        claim = _Claim(credentials.cluster_id, self.service, credentials.identity(), self.peer)
        claimed = self._sent(encode(claim))
        return claimed + self._sent(encode(_Proof(self._prove(credentials, _DIALER, self._transcript))))


def encode(message: _Message) -> bytes:
    """Return a message with its header."""
    content = msgspec.msgpack.encode(message)
    return _HEADER.pack(_MAGIC, PROTOCOL_VERSION, len(content)) + content


def refusal(reason: str) -> HandshakeFailed:
    """Return a failure whose reason the peer may know."""
    return HandshakeFailed(reason, encode(_Refusal(reason)))


def _shown(text: str) -> str:
    """Return text of a peer that is not trusted as it may be logged."""
    return repr(text[:_REASON_CHARACTERS])
