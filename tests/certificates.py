"""Certificates in files, for tests of TLS."""

from collections.abc import Sequence
from pathlib import Path

from conveyor.adapters.tls.development_authority import DevelopmentAuthority, Issued
from conveyor.settings.tls_settings import TlsSettings


def write(directory: Path, name: str, issued: Issued) -> tuple[str, str]:
    """Write a certificate and its key, and return their paths."""
    paths = directory / f"{name}.pem", directory / f"{name}.key"
    for path, content in zip(paths, issued, strict=True):
        path.touch(0o600)
        path.write_bytes(content)
    return str(paths[0]), str(paths[1])


def tls_settings(directory: Path, authority: DevelopmentAuthority, days: int = 30, **more: str) -> TlsSettings:
    """Return settings with a new certificate for 127.0.0.1 in this directory."""
    cert_file, key_file = write(directory, "broker", authority.issue_for_broker(["127.0.0.1"], days))
    return TlsSettings(cert_file=cert_file, key_file=key_file, **more)


def peer_settings(
    directory: Path, authority: DevelopmentAuthority, days: int = 30, hosts: Sequence[str] = ("127.0.0.1",)
) -> TlsSettings:
    """Return settings with a new certificate for links between brokers, and its authority, in this directory."""
    cert_file, key_file = write(directory, "peer", authority.issue_for_peer(hosts, days))
    ca_file = directory / "peer-ca.pem"
    ca_file.write_bytes(authority.issued.certificate)
    return TlsSettings(peer_cert_file=cert_file, peer_key_file=key_file, peer_ca_file=str(ca_file))


class Certificates:
    """Files for a broker on this machine and for its clients. Each attribute is a path, or those of a certificate and
    its key.
    """

    def __init__(self, directory: Path) -> None:
        authority, foreign = DevelopmentAuthority.create(), DevelopmentAuthority.create()
        self._directory, self._authority = directory, authority
        self.authority, _ = write(directory, "authority", authority.issued)
        self.broker = write(directory, "broker", authority.issue_for_broker(["127.0.0.1", "localhost"], 1))
        self.client = self.of_user("worker")
        """Of the user `CN=worker`."""
        self.foreign_client = write(directory, "foreign", foreign.issue_for_client("worker", 1))

    def of_user(self, name: str) -> tuple[str, str]:
        """Return a new certificate for the user `CN=<name>`, and its key."""
        return write(self._directory, name, self._authority.issue_for_client(name, 1))

    def connection(self, own: tuple[str, str] | None = None) -> dict[str, str]:
        """Return how a client connects, as `tests.clients.python.security` has it. own: its certificate and its key."""
        connection = {"protocol": "SSL", "ca": self.authority}
        return connection if own is None else connection | {"certificate": own[0], "key": own[1]}

    def settings(self, kafka: str, client_auth: str = "none") -> dict[str, object]:
        """Return the settings of a broker with these Kafka listeners."""
        return {
            "network.kafka": kafka,
            "tls.cert_file": self.broker[0],
            "tls.key_file": self.broker[1],
            "tls.client_auth": client_auth,
            "tls.client_ca_file": "" if client_auth == "none" else self.authority,
        }
