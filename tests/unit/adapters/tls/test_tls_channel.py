"""Both ends of TLS as bytes: what arrives, in pieces of any size, changed, cut off, or from a stranger."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.adapters.peers.link_certificate import link_certificate
from conveyor.adapters.tls.tls_channel import EMPTY_RECORDS, TlsChannel, TlsFailed
from tests.unit.adapters.client_contexts import client_context, context_of_older_tls


def ends() -> tuple[TlsChannel, TlsChannel]:
    """Return a client that has begun, and a server."""
    certificate = link_certificate()
    client = TlsChannel(certificate.dialer, is_server=False)
    server = TlsChannel(certificate.acceptor, is_server=True)
    client.begin()
    server.begin()
    return client, server


def exchange(client: TlsChannel, server: TlsChannel, piece_bytes: int = 1 << 20) -> tuple[bytes, bytes]:
    """Pass on all encrypted bytes, in pieces. Returns the plain bytes that the client and the server receive."""
    to_client, to_server = b"", b""
    while (sent := client.take_encrypted()) + (answered := server.take_encrypted()):
        for start in range(0, len(sent), piece_bytes):
            to_server += server.receive(sent[start : start + piece_bytes])
        for start in range(0, len(answered), piece_bytes):
            to_client += client.receive(answered[start : start + piece_bytes])
    return to_client, to_server


def opened() -> tuple[TlsChannel, TlsChannel]:
    client, server = ends()
    exchange(client, server)
    assert client.is_open
    assert server.is_open
    return client, server


@pytest.mark.parametrize("piece_bytes", [1, 7, 1_000, 1 << 20])
def test_bytes_arrive_whole_in_pieces_of_any_size(piece_bytes: int) -> None:
    client, server = ends()
    client.send(b"early")
    assert client.waiting_bytes == 5
    assert exchange(client, server, piece_bytes) == (b"", b"early")
    assert client.waiting_bytes == 0
    large = bytes(range(256)) * 300
    server.send(memoryview(large))
    client.send(b"")
    client.send(bytearray(b"later"))
    assert exchange(client, server, piece_bytes) == (large, b"later")
    assert client.version == server.version == "TLSv1.3"


def test_dialer_sees_the_certificate_of_the_acceptor() -> None:
    client, server = ends()
    assert (client.peer_certificate, client.version) == (None, "")
    exchange(client, server)
    assert (client.peer_certificate, server.peer_certificate) == (link_certificate().der, None)


@pytest.mark.parametrize("is_early", [True, False])
def test_end_is_told_to_the_peer(is_early: bool) -> None:
    client, server = ends() if is_early else opened()
    client.close()
    if is_early:
        exchange(client, server)
        client.close()
    client_received = server.receive(client.take_encrypted())
    assert client_received == b""
    assert server.is_ended
    assert not client.is_ended


def test_bytes_before_the_end_are_received() -> None:
    client, server = opened()
    client.send(b"last")
    client.close()
    assert server.receive(client.take_encrypted()) == b"last"
    assert server.is_ended
    assert server.receive(b"") == b""


@pytest.mark.parametrize("position", [0, 5, 40, -1])
def test_changed_record_is_refused(position: int) -> None:
    client, server = opened()
    client.send(bytes(100))
    changed = bytearray(client.take_encrypted())
    changed[position] ^= 1
    with pytest.raises(TlsFailed):
        server.receive(bytes(changed))
    assert server.take_encrypted(), "an alert tells the peer why"


def test_record_is_received_once() -> None:
    client, server = opened()
    client.send(b"once")
    encrypted = client.take_encrypted()
    server.receive(encrypted)
    with pytest.raises(TlsFailed):
        server.receive(encrypted)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"CVPR\x02\x00\x03abc", bytes(100)])
def test_peer_without_tls_is_refused(sent: bytes) -> None:
    _, server = ends()
    with pytest.raises(TlsFailed, match="TLS has failed: "):
        server.receive(sent)


def test_older_version_is_refused() -> None:
    client, (_, server) = TlsChannel(context_of_older_tls(), is_server=False), ends()
    client.begin()
    with pytest.raises(TlsFailed, match="unsupported protocol"):
        server.receive(client.take_encrypted())


def test_stranger_cannot_fill_the_memory_before_the_handshake() -> None:
    """A first message that announces 16 MB, in full records."""
    _, server = ends()
    fragments = [b"\x01\xff\xff\xff" + bytes(16_380), *[bytes(16_384)] * 15]
    records = [struct.pack(">BHH", 22, 0x0301, len(fragment)) + fragment for fragment in fragments]
    with pytest.raises(TlsFailed):
        any(map(server.receive, records))


def test_peer_that_sends_records_without_content_is_refused() -> None:
    """Tickets stand for all of them here: they follow the handshake, and hold nothing for the user."""
    certificate = link_certificate.__wrapped__()
    certificate.acceptor.num_tickets = EMPTY_RECORDS + 1
    client = TlsChannel(certificate.dialer, is_server=False)
    server = TlsChannel(certificate.acceptor, is_server=True)
    client.begin()
    server.receive(client.take_encrypted())
    client.receive(server.take_encrypted())
    assert server.receive(client.take_encrypted()) == b""
    with pytest.raises(TlsFailed, match="records without content"):
        client.receive(server.take_encrypted())


def test_many_records_with_little_content_are_received() -> None:
    client, server = opened()
    for _ in range(1_000):
        client.send(b"x")
    assert server.receive(client.take_encrypted()) == b"x" * 1_000


def test_other_groups_of_keys_are_refused() -> None:
    """A key of some of them takes a tenth of a second."""
    other = client_context()
    other.set_ecdh_curve("secp384r1")
    client, (_, server) = TlsChannel(other, is_server=False), ends()
    client.begin()
    with pytest.raises(TlsFailed):
        server.receive(client.take_encrypted())


@given(st.binary(max_size=2_000), st.booleans())
def test_no_bytes_of_a_stranger_are_received(noise: bytes, is_after_hello: bool) -> None:
    client, server = ends()
    try:
        if is_after_hello:
            server.receive(client.take_encrypted())
        assert server.receive(noise) == b""
    except TlsFailed:
        pass
    assert not server.is_open
