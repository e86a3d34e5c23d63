"""The certificate for links between brokers that an authority has signed, from files. Loaded only if there is one.

Both ends of a link show a certificate and verify the other one: its chain up to tls.peer_ca_file, its validity, and
that it is for servers and for clients, so that neither a client's certificate nor that of a listener for clients opens
a link. The dialer also verifies that it is valid for the host that it dials.

Before a certificate comes into force, the broker shows it to itself, in both roles and under the address that it
announces: other brokers that have the same authority will take it.
"""

import ssl
from functools import partial
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509.oid import ExtendedKeyUsageOID

from conveyor.adapters.peers.link_certificate import LinkCertificate, link_contexts
from conveyor.adapters.tls.certificate_files import (
    WatchedFiles,
    end_of_validity,
    load_certificate,
    shake_hands,
    usable,
    warn_of_readable_key,
)
from conveyor.adapters.tls.tls_channel import TlsFailed
from conveyor.kernel.errors import SettingsError
from conveyor.settings.tls_settings import TlsSettings

_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""Of what OpenSSL has taken, too."""
_USES = {ExtendedKeyUsageOID.SERVER_AUTH: "servers", ExtendedKeyUsageOID.CLIENT_AUTH: "clients"}


class _Loaded(NamedTuple):
    certificate: LinkCertificate
    expires_at_s: float


class IssuedCertificate(WatchedFiles[_Loaded]):
    """See the module's docstring. host: which other brokers dial; empty for a gateway, which nobody dials.

    Raises SettingsError for files that cannot be used.
    """

    def __init__(self, settings: TlsSettings, host: str) -> None:
        files = settings.peer_cert_file, settings.peer_key_file, settings.peer_ca_file
        super().__init__(files, partial(_load, settings, host))

    def current(self) -> LinkCertificate:
        """Return the certificate for links that begin now."""
        return self.loaded.certificate

    @property
    def expires_at_s(self) -> float:
        """The end of the certificate's validity, in seconds since 1970."""
        return self.loaded.expires_at_s


def use_refused(certificate: bytes | None) -> str:
    """Return why a certificate (DER) cannot be a broker's, or an empty text. One that lists no uses is for all.

    OpenSSL looks for one use at each end: of servers at the dialer, of clients at the acceptor.
    """
    if certificate is None:
        return "no certificate"
    try:
        extensions = x509.load_der_x509_certificate(certificate).extensions
        uses = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return ""
    except _UNREADABLE as error:
        return f"its certificate cannot be read: {error}"
    missing = [name for use, name in _USES.items() if use not in uses]
    return f"its certificate is not for {missing[0]}, and a broker's is for servers and clients" if missing else ""


def _load(settings: TlsSettings, host: str) -> _Loaded:
    cert_file, key_file, ca_file = settings.peer_cert_file, settings.peer_key_file, settings.peer_ca_file
    what = f"the certificate {cert_file} (tls.peer_cert_file)"
    acceptor, dialer = link_contexts()
    for context in (acceptor, dialer):
        with usable(f"{what} with the key {key_file} (tls.peer_key_file)"):
            load_certificate(context, cert_file, key_file)
        with usable(f"the certificates in {ca_file} (tls.peer_ca_file)"):
            context.load_verify_locations(ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
        # The authority may be an intermediate one, so that others below the same root are not trusted.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    with usable(f"the key {key_file} (tls.peer_key_file)"):
        warn_of_readable_key(key_file, "tls.peer_key_file")
    dialer.check_hostname = bool(host)
    try:
        shown, _ = shake_hands(dialer, acceptor, host or None)
        expires_at_s = end_of_validity(shown)
    except (TlsFailed, ValueError) as failure:
        announced = f", to whom this broker announces the host {host!r}," if host else ""
        raise SettingsError(
            f"other brokers with the same tls.peer_ca_file ({ca_file}){announced} would not take {what}: {failure}"
        ) from failure
    dialer.check_hostname = True
    assert shown.peer_certificate is not None, "the dialer has verified it"
    if refusal := use_refused(shown.peer_certificate):
        raise SettingsError(f"other brokers would not take {what}: {refusal}")
    return _Loaded(LinkCertificate(shown.peer_certificate, acceptor, dialer, use_refused), expires_at_s)
