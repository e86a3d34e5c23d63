"""Links between brokers that show certificates of an authority: who is refused, what both ends log, and rotation."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID, NameOID

from conveyor.adapters.peers import handshake
from conveyor.adapters.peers.issued_certificate import IssuedCertificate, use_refused
from conveyor.adapters.peers.link_certificate import LinkCertificate, link_certificate, link_contexts
from conveyor.adapters.tls.development_authority import DevelopmentAuthority, Issued
from conveyor.kernel.errors import SettingsError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerAddress, PeerIdentity, PeerUnreachable
from conveyor.settings.tls_settings import TlsSettings
from tests.certificates import peer_settings, write
from tests.unit.adapters.peers.nodes import Node, hello, linked, passing_on, running
from tests.unit.broker.markers.producers import until

AUTHORITY, OTHER_AUTHORITY = DevelopmentAuthority.create(), DevelopmentAuthority.create()

Certificate = Callable[[], LinkCertificate]


def issued(
    directory: Path, authority: DevelopmentAuthority = AUTHORITY, host: str = "127.0.0.1", days: int = 30
) -> IssuedCertificate:
    directory.mkdir(exist_ok=True)
    return IssuedCertificate(peer_settings(directory, authority, days, [host]), host)


def shown(certificate: Issued | None, directory: Path) -> Certificate:
    """Return the certificate of a stranger, who takes any and shows this one."""
    acceptor, dialer = link_contexts()
    if certificate is None:
        return lambda: LinkCertificate(b"", acceptor, dialer)
    for context in (acceptor, dialer):
        context.load_cert_chain(*write(directory, "stranger", certificate))
    der = ssl.PEM_cert_to_DER_cert(certificate.certificate.decode())
    return lambda: LinkCertificate(der, acceptor, dialer)


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Node]:
    """A broker with a certificate of the authority."""
    async with running(3, certificate=issued(tmp_path / "three").current) as node:
        yield node


async def test_brokers_of_one_authority_link_in_both_directions(three: Node, tmp_path: Path) -> None:
    async with running(4, certificate=issued(tmp_path / "four").current) as four:
        for one, other in ((three, four), (four, three)):
            dialled, accepted = await linked(one, other)
            dialled.link.send(b"there")
            accepted.link.send(b"back")
            assert (await accepted.frames.get(), await dialled.frames.get()) == (b"there", b"back")


STRANGERS: dict[str, tuple[Callable[[], Issued | None], str]] = {
    "none": (lambda: None, "peer did not return a certificate"),
    "other authority": (lambda: OTHER_AUTHORITY.issue_for_peer(["127.0.0.1"], 1), "unable to get local issuer"),
    "expired": (lambda: AUTHORITY.issue_for_peer(["127.0.0.1"], 0), "certificate has expired"),
    "only for clients": (lambda: AUTHORITY.issue_for_client("alice", 1), "its certificate is not for servers"),
    "only for servers": (lambda: AUTHORITY.issue_for_broker(["127.0.0.1"], 1), "unsuitable certificate purpose"),
}


@pytest.mark.parametrize("name", STRANGERS)
async def test_stranger_who_dials_is_refused_before_a_message_of_the_handshake(
    three: Node, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He knows the secret, and that does not help him."""
    make, reason = STRANGERS[name]
    sent: list[bytes] = []
    encode = handshake.encode

    def note(message: Any) -> bytes:
        sent.append(encode(message))
        return sent[-1]

    monkeypatch.setattr(handshake, "encode", note)
    async with running(4, certificate=shown(make(), tmp_path)) as stranger:
        with pytest.raises(PeerUnreachable):
            await stranger.dial(three.address)
        await until(lambda: "peer refused" in caplog.text)
    assert reason in caplog.text
    assert three.accepted.empty()
    assert not [message for message in sent if b"challenge" in message]


@pytest.mark.parametrize("name", ["other authority", "expired", "only for clients", "only for servers"])
async def test_stranger_who_is_dialled_is_refused(three: Node, tmp_path: Path, name: str) -> None:
    make, _ = STRANGERS[name]
    async with running(4, certificate=shown(make(), tmp_path)) as stranger:
        with pytest.raises(PeerUnreachable, match="certificate"):
            await three.dial(stranger.address)
        assert stranger.accepted.empty()


async def test_certificate_for_another_host_than_the_dialled_one_is_refused(three: Node, tmp_path: Path) -> None:
    async with running(4, certificate=issued(tmp_path / "four", host="b4.example").current) as four:
        with pytest.raises(PeerUnreachable, match=r"not valid for '127\.0\.0\.1'"):
            await three.dial(four.address)
        await linked(four, three)


async def test_host_that_no_certificate_can_name_is_unreachable(three: Node) -> None:
    address = PeerAddress(PeerIdentity(NodeId(9), "start-9"), ".example", 1)
    with pytest.raises(PeerUnreachable, match="cannot be reached"):
        await three.dial(address)


async def test_certificate_without_the_secret_opens_no_link(
    three: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(4, bytes(32), issued(tmp_path / "four").current) as four:
        for one, other in ((four, three), (three, four)):
            with pytest.raises(PeerUnreachable, match="does not know the secret of the cluster"):
                await one.dial(other.address)
    assert three.accepted.empty()


async def test_whoever_ends_tls_with_a_certificate_of_the_authority_is_found_out(three: Node, tmp_path: Path) -> None:
    """The proofs cover the certificate of the acceptor, as without an authority."""
    between = issued(tmp_path / "between").current()

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = three.network.host, three.network.port
        return await asyncio.open_connection(host, port, ssl=between.dialer, server_hostname=host)

    async with (
        passing_on(connect, between.acceptor) as address,
        running(4, certificate=issued(tmp_path / "four").current) as four,
    ):
        with pytest.raises(PeerUnreachable, match="does not know the secret"):
            await four.dial(PeerAddress(three.identity, *address))
    assert three.accepted.empty()


async def test_broker_without_a_certificate_and_one_with_it_say_what_is_missing(
    one: Node, three: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(PeerUnreachable, match=r"asks for a certificate, and tls\.peer_cert_file is not set here"):
        await one.dial(three.address)
    with pytest.raises(
        PeerUnreachable, match=r"or the peer's tls\.peer_cert_file is not set .*self-signed certificate"
    ):
        await three.dial(one.address)
    await until(lambda: caplog.text.count("peer refused") == 2)
    assert "the peer has shown no certificate, as if its tls.peer_cert_file is not set (" in caplog.text
    assert "the peer does not take the certificate of this broker" in caplog.text
    for _ in range(3):
        with pytest.raises(PeerUnreachable):
            await one.dial(three.address)
    await until(lambda: caplog.text.count("peer refused") == 5)
    for text in ("peer refused", "peer not dialled"):
        levels = [record.levelno for record in caplog.records if text in record.getMessage()]
        assert levels.count(logging.WARNING) == 2, "one for each of the two brokers"


async def test_stranger_who_says_nothing_learns_nothing(three: Node, tmp_path: Path) -> None:
    """Also if he has a certificate that is good for TLS."""
    client = shown(AUTHORITY.issue_for_client("alice", 1), tmp_path)()
    reader, writer = await asyncio.open_connection(
        three.network.host, three.network.port, ssl=client.dialer, server_hostname=""
    )
    writer.write(hello(three))
    answer = await reader.read()
    assert b"its certificate is not for servers" in answer
    assert b"cluster" not in answer
    assert b"start-3" not in answer
    writer.close()


async def test_new_certificates_and_a_new_authority_replace_the_old_ones_while_links_are_open(tmp_path: Path) -> None:
    """First both authorities are trusted everywhere, then certificates of the new one are shown, then it alone is."""
    directories = [tmp_path / "three", tmp_path / "four"]
    certificates = [issued(directory) for directory in directories]
    async with (
        running(3, certificate=certificates[0].current) as three,
        running(4, certificate=certificates[1].current) as four,
    ):
        dialled, accepted = await linked(three, four)

        async def change(change: Callable[[Path], object]) -> None:
            for directory, certificate in zip(directories, certificates, strict=True):
                change(directory)
                certificate.reload()
                await linked(three, four)
                await linked(four, three)

        both = AUTHORITY.issued.certificate + OTHER_AUTHORITY.issued.certificate
        await change(lambda directory: (directory / "peer-ca.pem").write_bytes(both))
        before = certificates[0].current().der
        await change(lambda directory: write(directory, "peer", OTHER_AUTHORITY.issue_for_peer(["127.0.0.1"], days=60)))
        assert certificates[0].current().der != before
        await change(lambda directory: (directory / "peer-ca.pem").write_bytes(OTHER_AUTHORITY.issued.certificate))
        dialled.link.send(b"still open")
        assert await accepted.frames.get() == b"still open"
        async with running(5, certificate=issued(tmp_path / "five").current) as five:
            with pytest.raises(PeerUnreachable):
                await five.dial(three.address)


def test_changed_files_that_others_would_not_take_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An authority is taken from the file before the certificate is replaced."""
    certificate = issued(tmp_path)
    before = certificate.current()
    (tmp_path / "peer-ca.pem").write_bytes(OTHER_AUTHORITY.issued.certificate)
    for _ in range(3):
        certificate.reload()
    assert certificate.current() is before
    assert caplog.text.count("changed certificate not loaded") == 1
    assert "unable to get local issuer certificate" in caplog.text
    write(tmp_path, "peer", OTHER_AUTHORITY.issue_for_peer(["127.0.0.1"], 60))
    certificate.reload()
    assert certificate.current() is not before


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("peer.pem", None, r"peer\.pem \(tls\.peer_cert_file\) with the key .* cannot be used: No such file"),
        ("peer.key", None, r"peer\.key \(tls\.peer_key_file\) cannot be used: No such file"),
        ("peer.key", OTHER_AUTHORITY.issued.key, "cannot be used: key values mismatch"),
        ("peer-ca.pem", None, r"peer-ca\.pem \(tls\.peer_ca_file\) cannot be used: No such file"),
        ("peer-ca.pem", b"", r"peer-ca\.pem \(tls\.peer_ca_file\) cannot be used: "),
        (
            "peer-ca.pem",
            OTHER_AUTHORITY.issued.certificate,
            "would not take .*: unable to get local issuer certificate",
        ),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    settings = peer_settings(tmp_path, AUTHORITY)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingsError, match=reason):
        IssuedCertificate(settings, "127.0.0.1")


def refusal(directory: Path, certificate: Issued, host: str = "127.0.0.1") -> str:
    """Return why a broker does not start with a certificate."""
    settings = peer_settings(directory, AUTHORITY)
    write(directory, "peer", certificate)
    with pytest.raises(SettingsError) as refused:
        IssuedCertificate(settings, host)
    return str(refused.value)


def test_certificate_that_other_brokers_would_not_take_is_refused_at_the_start(tmp_path: Path) -> None:
    good = AUTHORITY.issue_for_peer(["127.0.0.1"], 1)
    assert "not valid for 'b4.example'" in refusal(tmp_path, good, "b4.example")
    assert "not valid for '127.0.0.2'" in refusal(tmp_path, good, "127.0.0.2")
    assert "certificate has expired" in refusal(tmp_path, AUTHORITY.issue_for_peer(["127.0.0.1"], 0))
    assert "unsuitable certificate purpose" in refusal(tmp_path, AUTHORITY.issue_for_broker(["127.0.0.1"], 1))
    assert "unsuitable certificate purpose" in refusal(tmp_path, AUTHORITY.issue_for_client("alice", 1))
    assert "unable to get local issuer" in refusal(tmp_path, OTHER_AUTHORITY.issue_for_peer(["127.0.0.1"], 1))


def test_gateway_needs_no_host_in_its_certificate(tmp_path: Path) -> None:
    certificate = IssuedCertificate(peer_settings(tmp_path, AUTHORITY, hosts=["gateway.example"]), "")
    assert certificate.current().dialer.check_hostname
    assert certificate.expires_at_s > datetime.now(UTC).timestamp()


def test_certificate_that_lists_no_uses_is_for_all() -> None:
    assert use_refused(ssl.PEM_cert_to_DER_cert(AUTHORITY.issued.certificate.decode())) == ""
    assert use_refused(link_certificate().der) == ""
    assert use_refused(None) == "no certificate"
    assert "cannot be read" in use_refused(b"nothing")


def test_certificate_that_openssl_can_read_alone_is_refused() -> None:
    """Its alternative names have an X.400 address."""
    names = bytes.fromhex("300a 8704 7f000001 a302 3000")
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "b")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    builder = builder.add_extension(x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, names), False)
    der = builder.sign(key, SHA256()).public_bytes(Encoding.DER)
    assert "cannot be read" in use_refused(der)


def test_files_need_each_other() -> None:
    for given in ({"peer_cert_file": "a"}, {"peer_ca_file": "a"}, {"peer_cert_file": "a", "peer_key_file": "b"}):
        with pytest.raises(SettingsError, match="need each other: set all or none"):
            TlsSettings(**given).check()
