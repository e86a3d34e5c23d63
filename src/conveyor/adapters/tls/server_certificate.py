"""The certificate and the key of the listeners for clients, and the authorities of clients' certificates, from files.

Changed files are loaded while the broker runs: connections that are accepted later use them. Files that cannot be used,
for example because only one of two has been replaced yet, change nothing, and are tried again.

Clients and broker agree on keys on the curve P-256 alone, which every client of TLS knows: others cost the broker up to
a tenth of a second for each hello of a stranger.
"""

import logging
import ssl
import stat
from pathlib import Path
from typing import NamedTuple

from conveyor.adapters.tls.tls_channel import TlsChannel, TlsFailed
from conveyor.kernel.errors import SettingsError
from conveyor.settings.tls_settings import REQUIRED, TlsSettings

log = logging.getLogger(__name__)

CURVE = "prime256v1"

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of TLS 1.3 are all good."""
_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL: an expired certificate is shown, and clients judge it."""

_FileState = tuple[int, int, int, int]


class _Loaded(NamedTuple):
    context: ssl.SSLContext
    expires_at_s: float


class ServerCertificate:
    """See the module's docstring. Raises SettingsError for files that cannot be used."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._states = self._file_states()
        """Of the files when those in force were loaded."""
        self._loaded = _load(settings)
        self._refusal = ""
        """Why the changed files were not loaded."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context for connections that are accepted now."""
        return self._loaded.context

    @property
    def expires_at_s(self) -> float:
        """When the certificate ends, in seconds since 1970."""
        return self._loaded.expires_at_s

    def reload(self) -> None:
        """Load the files again if they differ from those in force. It reads files, so it may take long."""
        states = self._file_states()
        if states == self._states:
            return
        try:
            self._loaded = _load(self._settings)
        except SettingsError as refused:
            if str(refused) != self._refusal:
                log.warning("changed certificate not loaded, the one from before stays: %s", refused)
            self._refusal = str(refused)
        else:
            self._states, self._refusal = states, ""
            log.info("changed certificate loaded file=%s", self._settings.cert_file)

    def _file_states(self) -> list[_FileState | None]:
        settings = self._settings
        return [_state(name) for name in (settings.cert_file, settings.key_file, settings.client_ca_file) if name]


def _state(name: str) -> _FileState | None:
    try:
        status = Path(name).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _load(settings: TlsSettings) -> _Loaded:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    is_newest = settings.min_version == "1.3"
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if is_newest else ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_ecdh_curve(CURVE)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(settings.cert_file, settings.key_file, password=_no_password)
        trusting = _trusting(settings.cert_file)
        key_mode = Path(settings.key_file).stat().st_mode
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"the certificate {settings.cert_file} (tls.cert_file) with the key {settings.key_file} (tls.key_file)"
            f" cannot be used: {_reason(error)}"
        ) from error
    expires_at_s = _end_of_validity(context, trusting, settings.cert_file)
    if settings.client_ca_file:
        is_required = settings.client_auth == REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(settings.client_ca_file)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"the certificates in {settings.client_ca_file} (tls.client_ca_file) cannot be used: {_reason(error)}"
            ) from error
    if key_mode & stat.S_IROTH:
        log.warning("every user of this machine can read the key file=%s (tls.key_file)", settings.key_file)
    return _Loaded(context, expires_at_s)


def _no_password() -> str:
    raise ValueError("the key is encrypted: decrypt it, for example by `openssl pkey`, and protect the file instead")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.lower().replace("_", " ") if error.reason else "it is no PEM file"
    return getattr(error, "strerror", None) or str(error)


def _trusting(cert_file: str) -> ssl.SSLContext:
    """Return the context of a client that trusts the certificates in this file alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags = ssl.VerifyFlags(context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    context.load_verify_locations(cert_file)
    return context


def _end_of_validity(context: ssl.SSLContext, trusting: ssl.SSLContext, cert_file: str) -> float:
    """Return when a certificate ends, in seconds since 1970, as a client that trusts it sees it."""
    client, server = TlsChannel(trusting, is_server=False), TlsChannel(context, is_server=True)
    client.begin()
    try:
        while not client.is_open:
            server.receive(client.take_encrypted())
            client.receive(server.take_encrypted())
        return ssl.cert_time_to_seconds(str(client.peer_details["notAfter"]))
    except (TlsFailed, ValueError) as failure:
        raise SettingsError(
            f"clients cannot use the certificate in {cert_file} (tls.cert_file): {failure}"
        ) from failure
