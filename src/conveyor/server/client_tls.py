"""TLS of the listeners for clients: one certificate for all of them, loaded again when its files change."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from conveyor.adapters.tls.server_certificate import ServerCertificate
from conveyor.adapters.tls.tls_acceptor import TlsAcceptor
from conveyor.kernel.access.caller import Principal
from conveyor.kernel.errors import SettingsError
from conveyor.server.network_probe import NetworkProbe
from conveyor.settings.tls_settings import TlsSettings

log = logging.getLogger(__name__)

_CHECK_S = 2.0


class ClientTls:
    """See the module's docstring. principal_of: see `TlsAcceptor`. probe: counts refusals, and shows the certificate.

    Raises SettingsError for files that cannot be used.
    """

    def __init__(
        self, settings: TlsSettings, principal_of: Callable[[bytes | None], Principal], probe: NetworkProbe
    ) -> None:
        if not settings.cert_file:
            raise SettingsError(
                "listeners with TLS need tls.cert_file and tls.key_file: for tests, `conveyor certificates` makes them"
            )
        self._certificate = ServerCertificate(settings)
        self._probe = probe
        probe.certificate = self
        self.acceptor = TlsAcceptor(lambda: self._certificate.context, principal_of, self._refused)
        """Accepts the connections of all listeners with TLS."""
        log.info("clients connect by TLS certificate_expires=%s", datetime.fromtimestamp(self.expires_at_s, UTC).date())

    @property
    def expires_at_s(self) -> float:
        """When the certificate ends, in seconds since 1970."""
        return self._certificate.expires_at_s

    def _refused(self) -> None:
        self._probe.connections_refused += 1

    async def watch(self) -> None:
        """Load the certificate again whenever its files change."""
        while True:
            await asyncio.sleep(_CHECK_S)
            await asyncio.to_thread(self._certificate.reload)
