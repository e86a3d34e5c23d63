"""The certificate of this process for links between brokers: a fresh key at each start, signed by itself alone.

Brokers with tls.peer_cert_file use an `IssuedCertificate` instead.

    python -m conveyor.adapters.peers.link_certificate     prints the certificate and its key, as PEM in a list of JSON

Another process makes it, because the library would stay in the memory of the broker (13 MiB). Nobody verifies the
certificate: the handshake of the brokers proves who shows it. The key is never on a disk.
"""

import os
import ssl
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from subprocess import DEVNULL, SubprocessError, run
from typing import NamedTuple

import msgspec

from conveyor.adapters.tls.certificate_files import CURVE
from conveyor.kernel.errors import StartupError

_SECONDS = 20

CheckPeer = Callable[[bytes | None], str]
"""Takes the certificate that a peer has shown (DER). Returns why it is refused, or an empty text."""


def any_peer(_: bytes | None) -> str:
    """Refuse nobody, because the handshake of the brokers does."""
    return ""


class LinkCertificate(NamedTuple):
    """der: the certificate. acceptor, dialer: the contexts of TLS for the two sides of a link."""

    der: bytes
    acceptor: ssl.SSLContext
    dialer: ssl.SSLContext
    check_peer: CheckPeer = any_peer


@cache
def link_certificate() -> LinkCertificate:
    """Return the certificate of this process, made by the first call. Raises StartupError."""
    command = [sys.executable, "-P", "-m", __name__]  # -P: not from the working directory.
    try:
        made = run(command, stdin=DEVNULL, capture_output=True, timeout=_SECONDS, check=True)  # noqa: S603 - this module
        return _loaded(*msgspec.json.decode(made.stdout, type=tuple[str, str]))
    except (OSError, SubprocessError, ValueError) as error:
        output: bytes = getattr(error, "stderr", None) or b""
        reason = (output.decode(errors="replace").strip().splitlines() or [str(error)])[-1]
        raise StartupError(f"no certificate for the links between brokers could be made: {reason}") from error


def _loaded(certificate: str, key: str) -> LinkCertificate:
    """Raises OSError, ValueError."""
    acceptor, dialer = link_contexts()
    with ExitStack() as stack:
        acceptor.load_cert_chain(*(_readable(stack, text.encode()) for text in (certificate, key)))
    return LinkCertificate(ssl.PEM_cert_to_DER_cert(certificate), acceptor, dialer)


def link_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of the acceptor and of the dialer, which show no certificate yet and take any."""
    acceptor, dialer = _context(ssl.PROTOCOL_TLS_SERVER), _context(ssl.PROTOCOL_TLS_CLIENT)
    acceptor.num_tickets = 0
    return acceptor, dialer


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_ecdh_curve(CURVE)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _readable(stack: ExitStack, content: bytes) -> str:
    """Return the path of an open pipe that holds some content, which is shorter than its buffer."""
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    with os.fdopen(writing, "wb") as file:
        file.write(content)
    return f"/dev/fd/{reading}"


def main() -> None:
    """Print a certificate with a fresh key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "conveyor")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=36_500))
    certificate = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    sys.stdout.buffer.write(msgspec.json.encode([certificate.decode(), private.decode()]))


if __name__ == "__main__":
    main()
