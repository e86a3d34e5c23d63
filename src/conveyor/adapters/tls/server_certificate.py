"""The certificate and the key of the listeners for clients, and the authorities of clients' certificates, from files.

Connections that are accepted after a change of the files use the changed ones.

Clients and broker agree on keys on the curve P-256 alone, which every client of TLS knows.
"""

import ssl
from functools import partial
from typing import NamedTuple

from conveyor.adapters.tls.certificate_files import (
    CURVE,
    WatchedFiles,
    end_of_validity,
    load_certificate,
    shake_hands,
    trusting_only,
    usable,
    warn_of_readable_key,
)
from conveyor.adapters.tls.tls_channel import TlsFailed
from conveyor.kernel.errors import SettingsError
from conveyor.settings.tls_settings import REQUIRED, TlsSettings

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of TLS 1.3 are all good."""


class _Loaded(NamedTuple):
    context: ssl.SSLContext
    expires_at_s: float


class ServerCertificate(WatchedFiles[_Loaded]):
    """See the module's docstring. Raises SettingsError for files that cannot be used."""

    def __init__(self, settings: TlsSettings) -> None:
        files = settings.cert_file, settings.key_file, settings.client_ca_file
        super().__init__(files, partial(_load, settings))

    @property
    def context(self) -> ssl.SSLContext:
        """The context for connections that are accepted now."""
        return self.loaded.context

    @property
    def expires_at_s(self) -> float:
        """The end of the certificate's validity, in seconds since 1970."""
        return self.loaded.expires_at_s


def _load(settings: TlsSettings) -> _Loaded:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    is_newest = settings.min_version == "1.3"
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if is_newest else ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_ecdh_curve(CURVE)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    cert_file, key_file, client_ca_file = settings.cert_file, settings.key_file, settings.client_ca_file
    with usable(f"the certificate {cert_file} (tls.cert_file) with the key {key_file} (tls.key_file)"):
        load_certificate(context, cert_file, key_file)
        trusting = trusting_only(ssl.PROTOCOL_TLS_CLIENT, cert_file)
    expires_at_s = _end_of_validity(context, trusting, cert_file)
    if client_ca_file:
        is_required = settings.client_auth == REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        with usable(f"the certificates in {client_ca_file} (tls.client_ca_file)"):
            context.load_verify_locations(client_ca_file)
    with usable(f"the key {key_file} (tls.key_file)"):
        warn_of_readable_key(key_file, "tls.key_file")
    return _Loaded(context, expires_at_s)


def _end_of_validity(context: ssl.SSLContext, trusting: ssl.SSLContext, cert_file: str) -> float:
    """Return when a certificate ends, in seconds since 1970, as a client that trusts it sees it.

    It may have expired: it is shown, and clients judge it.
    """
    try:
        client, _ = shake_hands(trusting, context)
        return end_of_validity(client)
    except (TlsFailed, ValueError) as failure:
        raise SettingsError(
            f"clients cannot use the certificate in {cert_file} (tls.cert_file): {failure}"
        ) from failure
