"""The handshake between brokers, as bytes: who is let in, and what an attacker without the secret can do and learn."""

import struct
from secrets import token_bytes

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.adapters.peers.handshake import (
    MESSAGE_BYTES,
    NONCE_BYTES,
    AcceptorHandshake,
    DialerHandshake,
    HandshakeFailed,
)
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerCredentials, PeerIdentity, PeerService

SECRET = b"0123456789abcdef0123456789abcdef"
CERTIFICATE = b"the acceptor's certificate"
ONE, TWO, THREE = (PeerIdentity(NodeId(number), f"start-{number}") for number in (1, 2, 3))


def credentials(own: PeerIdentity, secret: bytes = SECRET, cluster: str = "cluster") -> PeerCredentials:
    return PeerCredentials(cluster, secret, lambda: own)


def acceptor(own: PeerIdentity = TWO, secret: bytes = SECRET, cluster: str = "cluster") -> AcceptorHandshake:
    return AcceptorHandshake(credentials(own, secret, cluster), CERTIFICATE, token_bytes(NONCE_BYTES))


def dialer(
    own: PeerIdentity = ONE, wanted: PeerIdentity = TWO, secret: bytes = SECRET, certificate: bytes = CERTIFICATE
) -> DialerHandshake:
    one = DialerHandshake(credentials(own, secret), wanted, PeerService.CALLS, token_bytes(NONCE_BYTES))
    one.certificate = certificate
    return one


def shake(one: DialerHandshake, two: AcceptorHandshake, chunk_bytes: int = 1 << 20) -> None:
    """Pass messages, in chunks of this size, until neither side has one."""
    to_two, to_one = one.begin(), b""
    while to_two or to_one:
        sent, to_two = to_two, b""
        for start in range(0, len(sent), chunk_bytes):
            to_one += two.receive(sent[start : start + chunk_bytes])
        sent, to_one = to_one, b""
        for start in range(0, len(sent), chunk_bytes):
            to_two += one.receive(sent[start : start + chunk_bytes])


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 64, 1 << 20])
def test_two_brokers_of_a_cluster_let_each_other_in(chunk_bytes: int) -> None:
    one, two = dialer(), acceptor()

    shake(one, two, chunk_bytes)

    assert one.is_done
    assert two.is_done
    assert (two.peer, two.service, one.peer) == (ONE, PeerService.CALLS, TWO)


def test_bytes_behind_the_handshake_are_kept_for_the_link() -> None:
    one, two = dialer(), acceptor()

    proof = one.receive(two.receive(one.begin()))
    welcome = two.receive(proof + b"frames")
    one.receive(welcome + b"other frames")

    assert (two.rest, one.rest) == (b"frames", b"other frames")


@pytest.mark.parametrize(
    ("two", "reason"),
    [
        (acceptor(own=THREE), "start start-3 of broker 3"),
        (acceptor(own=PeerIdentity(NodeId(2), "later")), "start later of broker 2"),
        (acceptor(cluster="other"), "belongs to cluster other"),
        (AcceptorHandshake(None, CERTIFICATE, bytes(NONCE_BYTES)), "has not joined its cluster yet"),
    ],
)
def test_another_broker_than_the_wanted_one_says_so(two: AcceptorHandshake, reason: str) -> None:
    one = dialer()

    with pytest.raises(HandshakeFailed, match=reason) as refused:
        shake(one, two)
    with pytest.raises(HandshakeFailed, match=reason):
        one.receive(refused.value.reply)

    assert not two.is_done
    assert not one.is_done


def test_a_second_broker_with_the_same_node_id_is_refused() -> None:
    with pytest.raises(HandshakeFailed, match="too, has node id 2"):
        shake(dialer(own=PeerIdentity(NodeId(2), "twin")), acceptor())


@pytest.mark.parametrize("shown", [b"another certificate", b""])
def test_whoever_ends_tls_between_two_brokers_is_found_out(shown: bytes) -> None:
    """The dialer sees the certificate of the one between, who passes all messages on."""
    one, two = dialer(certificate=shown), acceptor()

    with pytest.raises(HandshakeFailed, match=r"does not know the secret|has shown no certificate"):
        one.receive(two.receive(one.begin()))

    assert not two.is_done


@pytest.mark.parametrize("secret", [SECRET, bytes(32)])
def test_a_stranger_learns_nothing_of_the_cluster(secret: bytes) -> None:
    """Neither one who dials a broker, nor one whom a broker dials."""
    one, two = dialer(secret=secret), acceptor()

    hello = one.begin()
    challenge = two.receive(hello)

    for names in (b"cluster", b"start-", b"node"):
        assert names not in hello + challenge
    with pytest.raises(HandshakeFailed) as refused:
        two.receive(claim() + message(["proof", bytes(32)]))
    assert b"does not know the secret" in refused.value.reply


def test_an_acceptor_with_another_secret_is_not_believed() -> None:
    one, two = dialer(), acceptor(secret=bytes(32))

    challenge = two.receive(one.begin())

    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        one.receive(challenge)


def test_a_dialer_with_another_secret_is_refused() -> None:
    two, genuine = acceptor(), dialer()
    two.receive(genuine.begin())
    forged = message(["proof", bytes(32)])

    with pytest.raises(HandshakeFailed, match="does not know the secret") as refused:
        two.receive(claim() + forged)

    assert b"refusal" in refused.value.reply
    assert not two.is_done


def test_a_recorded_handshake_proves_nothing_later() -> None:
    one, recorded = dialer(), acceptor()
    hello = one.begin()
    proof = one.receive(recorded.receive(hello))
    recorded.receive(proof)
    assert recorded.is_done

    later = acceptor()
    later.receive(hello)
    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        later.receive(proof)


def test_a_recorded_acceptor_is_not_believed_by_a_new_dial() -> None:
    challenge = acceptor().receive(dialer().begin())
    again = dialer()
    again.begin()

    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        again.receive(challenge)


def test_a_dialer_is_not_tricked_into_answering_its_own_challenge() -> None:
    """An impostor passes the hello that it received to the victim's own listener, or opens a second link with it."""
    victim, own = dialer(own=ONE, wanted=TWO), acceptor(own=ONE)

    with pytest.raises(HandshakeFailed, match="too, has node id 1"):
        shake(victim, own)
    assert not victim.is_done


def test_the_proof_of_an_acceptor_is_none_of_a_dialer() -> None:
    """An impostor who dials sends the acceptor's own proof back to it."""
    two, stranger = acceptor(), dialer()
    challenge = two.receive(stranger.begin())
    _, _, proof = msgspec.msgpack.decode(challenge[7:])

    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        two.receive(claim() + message(["proof", proof]))


def test_an_altered_hello_spoils_the_proofs() -> None:
    one, two = dialer(), acceptor()
    hello = one.begin()

    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        one.receive(two.receive(hello[:-1] + bytes([hello[-1] ^ 1])))


def test_an_altered_claim_spoils_the_proof() -> None:
    one, two = dialer(), acceptor()
    claimed = one.receive(two.receive(one.begin())).replace(b"start-1", b"start-9")

    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        two.receive(claimed)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n",
        b"C",
        b"CVPR\x01\x00\x05hello",
        struct.pack(">4sBH", b"CVPR", 2, MESSAGE_BYTES + 1),
        struct.pack(">4sBH", b"CVPR", 2, 0),
        struct.pack(">4sBH", b"CVPR", 2, 3) + b"\xff\xff\xff",
    ],
)
def test_bytes_that_are_no_hello_are_refused(sent: bytes) -> None:
    with pytest.raises(HandshakeFailed):
        acceptor().receive(sent.ljust(8, b"\0"))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x92\xa7refusal\xa1\xff", id="not UTF-8"),
        pytest.param(b"\x92\xa7welcome" + b"\x91" * (MESSAGE_BYTES - 9), id="deep"),
        pytest.param(b"\x92\xa7refusal\xdb\xff\xff\xff\xff", id="long"),
    ],
)
def test_malformed_content_is_refused(content: bytes) -> None:
    with pytest.raises(HandshakeFailed, match="malformed"):
        acceptor().receive(framed(content))


def test_the_reason_for_a_refusal_is_one_line() -> None:
    with pytest.raises(HandshakeFailed) as refused:
        acceptor().receive(message(["hello\npeer accepted"]))
    assert "malformed" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [["proof", bytes(32)], ["welcome"], ["challenge", bytes(32), bytes(32)]])
def test_messages_out_of_turn_are_refused(content: list[object]) -> None:
    with pytest.raises(HandshakeFailed, match="out of turn"):
        acceptor().receive(message(content))


def test_a_claim_before_the_hello_is_refused() -> None:
    with pytest.raises(HandshakeFailed, match="out of turn"):
        acceptor().receive(claim())


def test_a_second_hello_or_claim_is_refused() -> None:
    for second in (dialer().begin(), claim() + claim()):
        two = acceptor()
        two.receive(dialer().begin())

        with pytest.raises(HandshakeFailed, match="out of turn"):
            two.receive(second)


def test_a_welcome_before_the_proofs_is_not_believed() -> None:
    one = dialer()
    one.begin()

    with pytest.raises(HandshakeFailed, match="out of turn"):
        one.receive(message(["welcome"]))


@given(st.binary(max_size=3_000), st.integers(0, 3))
def test_no_bytes_of_a_stranger_pass_the_handshake(noise: bytes, kind: int) -> None:
    two, one = acceptor(), dialer()
    known = [b"", struct.pack(">4sB", b"CVPR", 2), one.begin(), one.begin()[:40]][kind]
    try:
        two.receive(known)
        two.receive(noise)
    except HandshakeFailed:
        pass

    assert not two.is_done
    assert len(two.rest) <= MESSAGE_BYTES + 7 + len(noise)


def claim() -> bytes:
    """A claim as a stranger may send it who has heard of both brokers."""
    one, two = ({"node_id": each.node_id, "incarnation": each.incarnation} for each in (ONE, TWO))
    return message(["claim", "cluster", 2, one, two])


def message(content: list[object]) -> bytes:
    return framed(msgspec.msgpack.encode(content))


def framed(content: bytes) -> bytes:
    return struct.pack(">4sBH", b"CVPR", 2, len(content)) + content
