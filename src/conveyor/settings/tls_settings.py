"""How the listeners for clients encrypt, and which certificates they take from clients."""

from dataclasses import dataclass

from conveyor.settings.setting import setting

REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS of the Kafka and the HTTP listeners. Links between brokers need no settings."""

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
