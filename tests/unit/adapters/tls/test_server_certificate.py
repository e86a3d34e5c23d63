"""Certificates from files: what is shown to clients, loaded again after a change, and refused with a reason."""

import errno
import logging
import os
import re
import ssl
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from conveyor.adapters.tls.development_authority import DevelopmentAuthority
from conveyor.adapters.tls.server_certificate import ServerCertificate
from conveyor.adapters.tls.tls_channel import TlsChannel, TlsFailed
from conveyor.kernel.errors import SettingsError
from conveyor.settings.tls_settings import TlsSettings
from tests.certificates import tls_settings, write
from tests.unit.adapters.client_contexts import client_context, context_of_older_tls

AUTHORITY = DevelopmentAuthority.create()
OTHER_AUTHORITY = DevelopmentAuthority.create()
_DAY_S = 86_400
_TWO_HOURS_S = 7_200


def shaken(certificate: ServerCertificate, context: ssl.SSLContext) -> tuple[TlsChannel, TlsChannel]:
    """Return a client and a server after their handshake. Raises TlsFailed."""
    client = TlsChannel(context, is_server=False)
    server = TlsChannel(certificate.context, is_server=True)
    client.begin()
    while encrypted := client.take_encrypted():
        server.receive(encrypted)
        client.receive(server.take_encrypted())
    return client, server


def context_of_client(directory: Path, name: str, authority: DevelopmentAuthority) -> ssl.SSLContext:
    context = client_context()
    context.load_cert_chain(*write(directory, name, authority.issue_for_client(name, 1)))
    return context


def test_client_trusts_what_the_authority_has_signed(tmp_path: Path) -> None:
    certificate = ServerCertificate(tls_settings(tmp_path, AUTHORITY))
    context = ssl.create_default_context(cadata=AUTHORITY.issued.certificate.decode())
    context.check_hostname = False
    client, _ = shaken(certificate, context)
    assert client.version == "TLSv1.3"
    assert certificate.expires_at_s == pytest.approx(time.time() + 30 * _DAY_S, abs=3600)
    distrustful = ssl.create_default_context(cadata=OTHER_AUTHORITY.issued.certificate.decode())
    distrustful.check_hostname = False
    with pytest.raises(TlsFailed, match="certificate verify failed"):
        shaken(certificate, distrustful)


def test_oldest_version_is_a_setting(tmp_path: Path) -> None:
    older = ServerCertificate(tls_settings(tmp_path, AUTHORITY))
    assert shaken(older, context_of_older_tls())[0].version == "TLSv1.2"
    newest = ServerCertificate(tls_settings(tmp_path, AUTHORITY, min_version="1.3"))
    with pytest.raises(TlsFailed, match="unsupported protocol"):
        shaken(newest, context_of_older_tls())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_versions_before_tls_1_2_are_refused(tmp_path: Path, version: ssl.TLSVersion) -> None:
    context = client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with pytest.raises(TlsFailed):
        shaken(ServerCertificate(tls_settings(tmp_path, AUTHORITY)), context)


@pytest.mark.parametrize("ciphers", ["AES128-SHA", "ECDHE-ECDSA-AES256-SHA384", "NULL:@SECLEVEL=0"])
def test_weak_ciphers_are_refused(tmp_path: Path, ciphers: str) -> None:
    context = context_of_older_tls()
    context.set_ciphers(ciphers)
    with pytest.raises(TlsFailed):
        shaken(ServerCertificate(tls_settings(tmp_path, AUTHORITY)), context)


def test_client_shows_a_certificate_of_a_known_authority(tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(AUTHORITY.issued.certificate)
    certificate = ServerCertificate(
        tls_settings(tmp_path, AUTHORITY, client_ca_file=str(ca_file), client_auth="required")
    )
    _, server = shaken(certificate, context_of_client(tmp_path, "alice", AUTHORITY))
    assert server.peer_certificate == ssl.PEM_cert_to_DER_cert((tmp_path / "alice.pem").read_text())
    with pytest.raises(TlsFailed, match="certificate verify failed"):
        shaken(certificate, context_of_client(tmp_path, "mallory", OTHER_AUTHORITY))
    with pytest.raises(TlsFailed, match="peer did not return a certificate"):
        shaken(certificate, client_context())


def test_certificate_of_a_broker_is_none_of_a_client(tmp_path: Path) -> None:
    """A broker that is broken into must not become a client."""
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(AUTHORITY.issued.certificate)
    settings = tls_settings(tmp_path, AUTHORITY, client_ca_file=str(ca_file), client_auth="required")
    context = client_context()
    context.load_cert_chain(settings.cert_file, settings.key_file)
    with pytest.raises(TlsFailed, match="certificate verify failed"):
        shaken(ServerCertificate(settings), context)


def test_requested_certificate_may_be_missing_but_not_foreign(tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(AUTHORITY.issued.certificate)
    certificate = ServerCertificate(
        tls_settings(tmp_path, AUTHORITY, client_ca_file=str(ca_file), client_auth="requested")
    )
    _, server = shaken(certificate, client_context())
    assert server.peer_certificate is None
    with pytest.raises(TlsFailed, match="certificate verify failed"):
        shaken(certificate, context_of_client(tmp_path, "mallory", OTHER_AUTHORITY))


def test_changed_files_are_loaded_for_later_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate = ServerCertificate(tls_settings(tmp_path, AUTHORITY))
    before = certificate.context
    certificate.reload()
    assert certificate.context is before
    tls_settings(tmp_path, AUTHORITY, days=60)
    with caplog.at_level(logging.INFO):
        certificate.reload()
    assert certificate.context is not before
    assert certificate.expires_at_s > time.time() + 59 * _DAY_S
    assert "changed certificate loaded" in caplog.text


def test_session_of_tls_1_2_is_resumed_until_the_files_change(tmp_path: Path) -> None:
    """A client that has shown a certificate is known by it in a resumed session, too."""
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(AUTHORITY.issued.certificate)
    settings = tls_settings(tmp_path, AUTHORITY, client_ca_file=str(ca_file), client_auth="required")
    certificate = ServerCertificate(settings)
    context = context_of_client(tmp_path, "alice", AUTHORITY)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    first, server = ends_of_session(certificate, context)
    assert first.session is not None
    assert first.session.timeout == _TWO_HOURS_S
    assert not first.session_reused
    again, resumed = ends_of_session(certificate, context, first.session)
    assert again.session_reused
    assert resumed.getpeercert(binary_form=True) == server.getpeercert(binary_form=True) is not None
    tls_settings(tmp_path, AUTHORITY, days=60)
    certificate.reload()
    last, _ = ends_of_session(certificate, context, first.session)
    assert not last.session_reused


def test_session_of_tls_1_3_is_not_resumed(tmp_path: Path) -> None:
    certificate = ServerCertificate(tls_settings(tmp_path, AUTHORITY))
    context = client_context()
    client, _ = ends_of_session(certificate, context)
    assert client.version() == "TLSv1.3"
    assert client.session is not None
    assert not client.session.has_ticket
    again, _ = ends_of_session(certificate, context, client.session)
    assert not again.session_reused


def ends_of_session(
    certificate: ServerCertificate, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return a client and a server after their handshake. session: that the client wants to resume."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, session=session)
    server = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server) * 3:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    with suppress(ssl.SSLWantReadError):
        client.read()
    return client, server


def test_files_that_do_not_fit_leave_the_certificate_in_force(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new certificate is written before its key, and then the key."""
    certificate = ServerCertificate(tls_settings(tmp_path, AUTHORITY))
    before, key_file = certificate.context, tmp_path / "broker.key"
    old_key = key_file.read_bytes()
    tls_settings(tmp_path, AUTHORITY, days=60)
    new_key = key_file.read_bytes()
    key_file.write_bytes(old_key)
    for _ in range(3):
        certificate.reload()
    assert certificate.context is before
    assert caplog.text.count("changed certificate not loaded, the one from before stays") == 1
    key_file.unlink()
    for _ in range(3):
        certificate.reload()
    assert certificate.context is before
    assert caplog.text.count("changed certificate not loaded, the one from before stays") == 2
    key_file.write_bytes(new_key)
    certificate.reload()
    assert certificate.expires_at_s > time.time() + 59 * _DAY_S


def test_files_that_could_not_be_loaded_for_a_moment_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = ServerCertificate(tls_settings(tmp_path, AUTHORITY))
    tls_settings(tmp_path, AUTHORITY, days=60)
    with monkeypatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_cert_chain", _unreadable)
        certificate.reload()
    assert certificate.expires_at_s < time.time() + 59 * _DAY_S
    certificate.reload()
    assert certificate.expires_at_s > time.time() + 59 * _DAY_S


def _unreadable(*_: object, **__: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


def test_content_that_changes_within_its_size_and_time_is_loaded(tmp_path: Path) -> None:
    """Tools that copy files may keep the time of the last change, and certificates often have the same size."""
    settings = tls_settings(tmp_path, AUTHORITY)
    certificate = ServerCertificate(settings)
    before, times = certificate.context, Path(settings.cert_file).stat()
    Path(settings.cert_file).write_bytes(Path(settings.cert_file).read_bytes())
    os.utime(settings.cert_file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert Path(settings.cert_file).stat().st_ctime_ns != times.st_ctime_ns
    certificate.reload()
    assert certificate.context is not before


@pytest.mark.parametrize("label", ["X509 CRL", "TRUSTED CERTIFICATE"])
def test_block_that_cannot_be_read_behind_the_certificate_is_refused(tmp_path: Path, label: str) -> None:
    settings = tls_settings(tmp_path, AUTHORITY)
    certificate = ServerCertificate(settings)
    before = certificate.context
    with Path(settings.cert_file).open("a") as file:
        file.write(f"-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n")
    with pytest.raises(SettingsError, match=r"broker\.pem \(tls\.cert_file\).* cannot be used: "):
        ServerCertificate(settings)
    certificate.reload()
    assert certificate.context is before


@pytest.mark.parametrize(("mode", "is_told"), [(0o600, False), (0o640, False), (0o644, True)])
def test_key_that_others_can_read_is_told(
    tmp_path: Path, mode: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = tls_settings(tmp_path, AUTHORITY)
    Path(settings.key_file).chmod(mode)
    ServerCertificate(settings)
    assert (f"every user of this machine can read the key file={settings.key_file}" in caplog.text) == is_told


def test_expired_certificate_is_shown(tmp_path: Path) -> None:
    certificate = ServerCertificate(tls_settings(tmp_path, AUTHORITY, days=0))
    assert certificate.expires_at_s <= time.time()
    shaken(certificate, client_context())


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("broker.pem", None, "No such file or directory"),
        ("broker.pem", b"", "no start line|it is no PEM file"),
        ("broker.key", b"no key", "it is no PEM file|no start line|pem lib"),
        ("broker.key", OTHER_AUTHORITY.issued.key, "key values mismatch"),
    ],
)
def test_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    settings = tls_settings(tmp_path, AUTHORITY)
    path = tmp_path / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=rf"{path}.* cannot be used: ({reason})"):
        ServerCertificate(settings)


def test_encrypted_key_is_refused_without_a_question(tmp_path: Path) -> None:
    settings = tls_settings(tmp_path, AUTHORITY)
    key = load_pem_private_key((tmp_path / "broker.key").read_bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "broker.key").write_bytes(encrypted)
    with pytest.raises(SettingsError, match="the key is encrypted: decrypt it"):
        ServerCertificate(settings)


def test_certificate_of_a_client_is_none_of_a_broker(tmp_path: Path) -> None:
    cert_file, key_file = write(tmp_path, "client", AUTHORITY.issue_for_client("client", 1))
    with pytest.raises(SettingsError, match="clients cannot use the certificate"):
        ServerCertificate(TlsSettings(cert_file=cert_file, key_file=key_file))


def test_certificate_whose_end_is_no_time_is_refused(tmp_path: Path) -> None:
    settings = tls_settings(tmp_path, AUTHORITY)
    content = ssl.PEM_cert_to_DER_cert(Path(settings.cert_file).read_text())
    _, end = re.findall(rb"\x17\x0d(\d{12}Z)", content)
    Path(settings.cert_file).write_text(ssl.DER_cert_to_PEM_cert(content.replace(end, b"991332000000Z")))
    with pytest.raises(SettingsError, match=r"clients cannot use the certificate .* 'Bad time value'"):
        ServerCertificate(settings)


def test_missing_authorities_are_named(tmp_path: Path) -> None:
    settings = tls_settings(tmp_path, AUTHORITY, client_ca_file=str(tmp_path / "none.pem"), client_auth="required")
    with pytest.raises(SettingsError, match=r"none\.pem \(tls\.client_ca_file\) cannot be used: No such file"):
        ServerCertificate(settings)
