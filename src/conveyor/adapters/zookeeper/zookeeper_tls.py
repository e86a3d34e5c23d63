"""TLS of the connection to a ZooKeeper: whose certificates are trusted, and which one this broker shows, from files.

Connections that begin after a change of the files use the changed ones.
"""

import ssl
from functools import partial
from typing import NamedTuple

from conveyor.adapters.tls.certificate_files import (
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


class _Files(NamedTuple):
    cert_file: str
    key_file: str
    ca_file: str


class _Loaded(NamedTuple):
    context: ssl.SSLContext
    expires_at_s: float | None


class ZookeeperTls(WatchedFiles[_Loaded]):
    """See the module's docstring. Empty paths: the system's authorities, and no certificate of this broker.

    Raises SettingsError for files that cannot be used.
    """

    def __init__(self, *, ca_file: str = "", cert_file: str = "", key_file: str = "") -> None:
        files = _Files(cert_file, key_file, ca_file)
        super().__init__(files, partial(_load, files))

    @property
    def context(self) -> ssl.SSLContext:
        """The context for connections that begin now. The server's certificate must be valid for its address."""
        return self.loaded.context

    @property
    def expires_at_s(self) -> float | None:
        """The end of the validity of this broker's certificate, in seconds since 1970; None if it shows none."""
        return self.loaded.expires_at_s


def _load(files: _Files) -> _Loaded:
    with usable(f"the certificates in {files.ca_file} (zookeeper.tls_ca_file)"):
        context = ssl.create_default_context(cafile=files.ca_file or None)
    if not files.cert_file:
        return _Loaded(context, None)
    what = f"the certificate {files.cert_file} (zookeeper.tls_cert_file)"
    with usable(f"{what} with the key {files.key_file} (zookeeper.tls_key_file)"):
        load_certificate(context, files.cert_file, files.key_file)
        warn_of_readable_key(files.key_file, "zookeeper.tls_key_file")
        server = trusting_only(ssl.PROTOCOL_TLS_SERVER, files.cert_file)
        load_certificate(server, files.cert_file, files.key_file)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        load_certificate(client, files.cert_file, files.key_file)
    try:
        _, shown = shake_hands(client, server)
        return _Loaded(context, end_of_validity(shown))
    except (TlsFailed, ValueError) as failure:
        raise SettingsError(f"a ZooKeeper would not take {what}: {failure}") from failure
