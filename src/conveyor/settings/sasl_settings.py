"""Settings of logins by bearer tokens, and of the length of Kafka clients' sessions."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from conveyor.kernel.errors import SettingsError
from conveyor.kernel.hosts import is_loopback
from conveyor.settings.setting import setting

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
ANY = "*"
"""As an audience or an issuer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """Bearer tokens (JWT) that an identity provider signs, and the sessions of Kafka clients that log in."""

    jwks_file: str = setting(
        "",
        "A file with the keys (JWKS) that sign the tokens of clients. A changed file is loaded while the broker runs.",
    )
    jwks_url: str = setting(
        "",
        "The URL of these keys, in place of a file: `https`, or `http` to this machine. The broker asks for them each"
        " hour, and when a token names a key that it does not know.",
        kafka="sasl.oauthbearer.jwks.endpoint.url",
    )
    oauth_issuer: str = setting(
        "",
        "The issuer (`iss`) that tokens must have. `*` permits any whose key is among the keys: some providers sign the"
        " tokens of all their customers by the same keys. It has to be set if there are keys.",
        unit="issuer, or *",
        kafka="sasl.oauthbearer.expected.issuer",
    )
    oauth_audience: str = setting(
        "",
        "The audiences (`aud`), of which a token must have one. `*` also permits tokens that were issued for other"
        " services, or for none. It has to be set if there are keys.",
        unit="list of audiences, or *",
        kafka="sasl.oauthbearer.expected.audience",
        is_list=True,
    )
    oauth_principal_claim: str = setting(
        "sub",
        "The claim of a token that is the name of its user.",
        kafka="sasl.oauthbearer.sub.claim.name",
        pattern=r".+",
        unit="name of a claim",
    )
    max_reauth_ms: int = setting(
        0,
        "Kafka clients that log in do so again after this time at the latest, or are disconnected; 0 for no limit. A"
        " client with a token does so before the token ends in any case.",
        unit="ms",
        kafka="connections.max.reauth.ms",
        minimum=0,
        maximum=(1 << 31) - 1,
    )

    @property
    def has_keys(self) -> bool:
        """Whether clients may log in by tokens."""
        return bool(self.jwks_file or self.jwks_url)

    @property
    def audiences(self) -> frozenset[str]:
        """The permitted audiences, which may include `ANY`."""
        return frozenset(filter(None, map(str.strip, self.oauth_audience.split(","))))

    def check(self, mechanisms: str) -> None:
        """Check the relations between these settings. mechanisms: the offered ones. Raises SettingsError."""
        if self.jwks_file and self.jwks_url:
            raise SettingsError("sasl.jwks_file and sasl.jwks_url exclude each other: set one of them")
        if self.jwks_url:
            _check_url(self.jwks_url)
        if self.has_keys and not self.audiences:
            raise SettingsError(
                "sasl.oauth_audience is not set: name the audience of the tokens for this cluster, or set it to * to"
                " take tokens that were issued for other services as well"
            )
        if self.has_keys and not self.oauth_issuer:
            raise SettingsError(
                "sasl.oauth_issuer is not set: name the issuer (iss) of the tokens, or set it to * to take those of all"
                " whom the keys sign for"
            )
        if OAUTHBEARER in mechanisms.split(",") and not self.has_keys:
            raise SettingsError(
                f"network.sasl_mechanisms has {OAUTHBEARER}, and nothing names the keys of tokens: set sasl.jwks_file"
                " or sasl.jwks_url"
            )


def _check_url(url: str) -> None:
    """Check that an address is that of another machine by https, or of this one. Raises SettingsError."""
    try:
        parts = urlsplit(url)
        is_permitted = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        is_whole = bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc and not parts.fragment
    except ValueError:
        is_permitted = is_whole = False
    if not is_permitted or not is_whole or not url.isascii():
        raise SettingsError(
            f"setting 'sasl.jwks_url' is {url!r}: it takes https://host/path, or http:// to 127.0.0.1, without a user"
        )
