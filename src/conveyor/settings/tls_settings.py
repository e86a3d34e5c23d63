"""Settings of encryption for clients, and of the certificates that clients, and brokers among each other, show."""

from dataclasses import dataclass

from conveyor.kernel.errors import SettingsError
from conveyor.settings.setting import setting

REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS of the Kafka and the HTTP listeners, and certificates of an authority for the links between brokers."""

    cert_file: str = setting(
        "",
        "A file (PEM) with the certificate that the broker shows to its clients, followed by those of its issuers"
        " except the root. Changed files are loaded while the broker runs.",
        kafka="ssl.keystore.location",
    )
    key_file: str = setting(
        "", "A file (PEM) with the key of the certificate, not encrypted.", kafka="ssl.keystore.key"
    )
    client_ca_file: str = setting(
        "",
        "A file (PEM) with the certificates of the authorities that sign the certificates of clients.",
        kafka="ssl.truststore.location",
    )
    client_auth: str = setting(
        "none",
        "Whether clients show a certificate. With `requested`, those that show none are `User:ANONYMOUS`.",
        choices=("none", "requested", REQUIRED),
        kafka="ssl.client.auth",
    )
    min_version: str = setting(
        "1.2",
        "The oldest version of TLS that clients may speak.",
        choices=("1.2", "1.3"),
        kafka="ssl.enabled.protocols",
    )
    principal_rules: str = setting(
        "DEFAULT",
        "How the distinguished name of a client's certificate becomes the name of its user, in Kafka's syntax:"
        " `RULE:pattern/replacement/`, with L or U at the end for lower or upper case, and DEFAULT for the whole name."
        " The first rule that matches decides.",
        unit="list of rules",
        kafka="ssl.principal.mapping.rules",
    )
    peer_cert_file: str = setting(
        "",
        "A file (PEM) with the certificate that the broker shows to other brokers, followed by those of its issuers"
        " except the root. It has to be for servers and for clients, and for the host of `network.peer_advertised`. By"
        " default the broker makes a certificate at its start. Changed files are loaded while the broker runs.",
    )
    peer_key_file: str = setting("", "A file (PEM) with the key of that certificate, not encrypted.")
    peer_ca_file: str = setting(
        "",
        "A file (PEM) with the certificates of the authorities that sign the certificates of brokers, best of one that"
        " signs nothing else.",
    )

    def check(self) -> None:
        """Check the relations of these settings. Raises SettingsError."""
        if bool(self.cert_file) != bool(self.key_file):
            raise SettingsError("tls.cert_file and tls.key_file need each other: set both or none")
        if (self.client_auth != "none") != bool(self.client_ca_file):
            raise SettingsError(
                f"tls.client_auth is {self.client_auth}, and tls.client_ca_file is {self.client_ca_file or 'not set'}:"
                " the file names the authorities of clients' certificates; set both or none"
            )
        if len({bool(file) for file in (self.peer_cert_file, self.peer_key_file, self.peer_ca_file)}) > 1:
            raise SettingsError(
                "tls.peer_cert_file, tls.peer_key_file and tls.peer_ca_file need each other: set all or none"
            )
