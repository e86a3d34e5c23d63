"""TLS of the listeners for clients: one certificate for all of them."""

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


class ClientTls:
    """See the module's docstring. principal_of: see `TlsAcceptor`. probe: counts refusals.

    Raises SettingsError for files that cannot be used.
    """

    def __init__(
        self, settings: TlsSettings, principal_of: Callable[[bytes | None], Principal], probe: NetworkProbe
    ) -> None:
        if not settings.cert_file:
            raise SettingsError(
                "listeners with TLS need tls.cert_file and tls.key_file: for tests, `conveyor certificates` makes them"
            )
        self.certificate = certificate = ServerCertificate(settings)
        self._probe = probe
        self.acceptor = TlsAcceptor(lambda: certificate.context, principal_of, self._refused)
        """Accepts the connections of all listeners with TLS."""
        expires_on = datetime.fromtimestamp(certificate.expires_at_s, UTC).date()
        log.info("clients connect by TLS certificate_expires=%s", expires_on)

    def _refused(self) -> None:
        self._probe.connections_refused += 1
