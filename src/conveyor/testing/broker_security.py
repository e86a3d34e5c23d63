"""The security of brokers in a test: an authority, a certificate for 127.0.0.1, and one user, all new.

The user may do everything, others only what an ACL allows.
"""

import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.users import CredentialChange, Upsertion
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.access.scram import MIN_ITERATIONS, SALT_BYTES, ScramMechanism, salted_password
from conveyor.kernel.ids import NodeId

_HOSTS = ("127.0.0.1", "localhost")
_DAYS = 2
_PREFIXES = {"network.kafka": "SASL_SSL://", "network.http": "https://"}


class BrokerSecurity:
    """See the module's docstring. ca_file: the certificate of the authority (PEM). Call `remove` at the end."""

    def __init__(self) -> None:
        # Its library takes 0.1 s to load, which other tests do not wait for.
        from conveyor.adapters.tls.development_authority import DevelopmentAuthority

        self.admin_password = secrets.token_urlsafe()
        self._directory = tempfile.TemporaryDirectory(prefix="conveyor-certificates-")
        authority = DevelopmentAuthority.create(_DAYS)
        issued = authority.issue_for_broker(_HOSTS, _DAYS)
        self.ca_file = self._write("ca.pem", authority.issued.certificate)
        self.settings: dict[str, object] = {
            "tls.cert_file": self._write("broker.pem", issued.certificate),
            "tls.key_file": self._write("broker.key", issued.key),
            "network.http_users": True,
            "access.enabled": True,
            "access.super_users": f"User:{Secured.admin_user}",
        }

    def listeners(self, addresses: Mapping[str, str]) -> dict[str, str]:
        """Return settings for listeners at these addresses, which are given by their settings' names."""
        return {name: f"{_PREFIXES[name]}{address}" for name, address in addresses.items()}

    async def add_admin(self, broker: BrokerNode) -> None:
        """Add the user, unless another broker of the cluster has."""
        credentials = broker.clients.credentials
        if any(credentials.held(Secured.admin_user)):
            return
        user, password = Secured.admin_user, self.admin_password
        changes = [password_change(user, password, secrets.token_bytes(SALT_BYTES), each) for each in ScramMechanism]
        await credentials.alter(Caller.broker(NodeId(0)), changes)

    def remove(self) -> None:
        """Remove the files."""
        self._directory.cleanup()

    def _write(self, name: str, content: bytes) -> str:
        path = Path(self._directory.name) / name
        path.touch(0o600)
        path.write_bytes(content)
        return str(path)


def password_change(
    user: str,
    password: str,
    salt: bytes,
    mechanism: ScramMechanism = ScramMechanism.SHA_256,
    iterations: int = MIN_ITERATIONS,
) -> CredentialChange:
    """Return the change by which a user has a password."""
    salted = salted_password(mechanism, password, salt, iterations)
    return CredentialChange(user, mechanism.number, Upsertion(iterations, salt, salted))


class Secured:
    """A broker or a cluster that may be secure."""

    admin_user = "admin"
    """The user who may log in, and do everything."""

    security: BrokerSecurity | None = None

    @property
    def ca_file(self) -> str:
        """The file (PEM) of the authority that has signed the certificates. Raises ValueError without security."""
        return self._required_security().ca_file

    @property
    def admin_password(self) -> str:
        """The password of the user. Raises ValueError without security."""
        return self._required_security().admin_password

    def _required_security(self) -> BrokerSecurity:
        if self.security is None:
            raise ValueError("clients need neither certificates nor passwords here: create it with security=True")
        return self.security
