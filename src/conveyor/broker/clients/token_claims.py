"""The claims of a bearer token, whose signature is right: whether they permit a login, and who the user is.

Times may differ from the broker's by `SKEW_MS`. A token without an end is refused. Source: RFC 7519, 4.1; KIP-768.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from conveyor.kernel.access.caller import ANONYMOUS, is_user_name
from conveyor.kernel.errors import ConveyorError
from conveyor.settings.sasl_settings import ANY, SaslSettings

SKEW_MS = 30_000
"""By which the clock of the issuer may differ."""

_SHOWN = 64
_LAST_S = 1 << 40
"""In seconds since 1970. NaN is not below it either."""


class TokenRefused(ConveyorError):  # noqa: N818 - named for what it is
    """A token does not prove who the client is. The text is for the log: the client learns nothing of it."""


class VerifiedToken(NamedTuple):
    """A token that was right. ends_ms: when it is refused, in wall-clock time."""

    user: str
    ends_ms: int

    def rest_ms(self, now_ms: int) -> int:
        """Return for how long the token is valid, at least a millisecond."""
        return max(1, self.ends_ms - now_ms)


def verified_token(claims: Mapping[str, Any], settings: SaslSettings, now_ms: int) -> VerifiedToken:
    """Return whom a token names. Raises TokenRefused."""
    ends_ms = _time_ms(claims, "exp")
    if ends_ms is None:
        raise TokenRefused("a token without an end (exp)")
    if ends_ms + SKEW_MS <= now_ms:
        raise TokenRefused("a token that has expired (exp)")
    for name in ("nbf", "iat"):
        if (_time_ms(claims, name) or 0) > now_ms + SKEW_MS:
            raise TokenRefused(f"a token of the future ({name})")
    if "cnf" in claims:
        raise TokenRefused("a token that only the holder of a key may use (cnf)")
    if claims.get("iss") != settings.oauth_issuer and settings.oauth_issuer != ANY:
        raise TokenRefused(f"a token of another issuer, iss={_shown(claims.get('iss'))}")
    _check_audience(claims.get("aud"), settings.audiences)
    return VerifiedToken(_user(claims, settings.oauth_principal_claim), ends_ms + SKEW_MS)


def _check_audience(given: object, permitted: frozenset[str]) -> None:
    names = given if isinstance(given, list) else [given]
    if ANY not in permitted and not any(isinstance(name, str) and name in permitted for name in names):
        raise TokenRefused(f"a token for others, aud={_shown(given)}")


def _user(claims: Mapping[str, Any], claim: str) -> str:
    name = claims.get(claim)
    if not isinstance(name, str) or not is_user_name(name) or name == ANONYMOUS.name:
        raise TokenRefused(f"a token without the name of a user, {claim}={_shown(name)}")
    return name


def _time_ms(claims: Mapping[str, Any], name: str) -> int | None:
    """Return a claim in milliseconds; None if the token has none."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LAST_S < value < _LAST_S:
        raise TokenRefused(f"a token whose time is no date, {name}={_shown(value)}")
    return int(value * 1000)


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN]
