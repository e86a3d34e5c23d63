"""The certificates of a broker that are in files: loaded again when their files change, and shown in /metrics."""

import asyncio
from typing import Protocol

from conveyor.server.network_probe import Expiring, NetworkProbe

CLIENTS, BROKERS, ZOOKEEPER = "clients", "brokers", "zookeeper"
"""To whom a certificate is shown."""

_CHECK_S = 2.0


class ReloadedCertificate(Expiring, Protocol):
    """A certificate in files. `reload` may take long; see `WatchedFiles`."""

    def reload(self) -> None: ...


class CertificateWatch:
    """See the module's docstring. Run `watch` from the start of the broker on."""

    def __init__(self, probe: NetworkProbe) -> None:
        self._probe = probe
        self._certificates: list[ReloadedCertificate] = []

    def add(self, shown_to: str, certificate: ReloadedCertificate) -> None:
        """Watch a certificate. shown_to: as /metrics names it."""
        self._probe.certificates[shown_to] = certificate
        self._certificates.append(certificate)

    async def watch(self) -> None:
        """Load each certificate again whenever its files change."""
        while self._certificates:
            await asyncio.sleep(_CHECK_S)
            for certificate in self._certificates:
                await asyncio.to_thread(certificate.reload)
