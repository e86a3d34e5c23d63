"""The server's side of OAUTHBEARER: a bearer token in one message, and three more if the token is refused. Source: RFC
7628, 3; KIP-255.

    client first    n,[a=authzid],^Aauth=Bearer token^A[key=value^A]...^A       server   nothing
    of a refused token: server {"status":"invalid_token"}, client ^A, and then the failure

`^A` is the byte 1. Keys other than `auth` are extensions, which have no effect here.
"""

import re

from conveyor.kafka_api.wire.sasl.sasl_steps import (
    Challenge,
    ExchangeRefused,
    SaslFailed,
    TokenWanted,
    decoded,
    unescaped,
)

MAX_OAUTH_BYTES = 20 << 10
"""A token of 16 KiB, and extensions."""

_INVALID = b'{"status":"invalid_token"}'
_HEADER = re.compile(r"[ny],(?:a=([^,]+))?,")
_PAIR = re.compile(r"([A-Za-z]+)=([\x20-\x7e\t\r\n]*)")
_CREDENTIALS = re.compile(r"Bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)


class OauthExchange:
    """One exchange."""

    def __init__(self) -> None:
        self._is_refused = False

    def step(self, message: bytes) -> TokenWanted | ExchangeRefused:
        """Process a message of the client. Raises SaslFailed."""
        if self._is_refused:
            return ExchangeRefused()
        if len(message) > MAX_OAUTH_BYTES:
            raise SaslFailed("a message of OAUTHBEARER that is too long")
        header, separator, rest = decoded(message).partition("\1")
        found = _HEADER.fullmatch(header)
        if found is None or not separator or not rest.endswith("\1\1"):
            raise SaslFailed("malformed message of OAUTHBEARER, or one with channel binding")
        return TokenWanted(_token(rest[:-2].split("\1")), unescaped(found[1] or ""))

    def refuse(self) -> Challenge:
        """Return what tells the client that its token is refused."""
        self._is_refused = True
        return Challenge(_INVALID)


def _token(pairs: list[str]) -> str:
    values: dict[str, str] = {}
    for pair in pairs:
        found = _PAIR.fullmatch(pair)
        if found is None or found[1] in values:
            raise SaslFailed("malformed pair of key and value in OAUTHBEARER, or a key that comes twice")
        values[found[1]] = found[2]
    found = _CREDENTIALS.fullmatch(values.get("auth", ""))
    if found is None:
        raise SaslFailed("a message of OAUTHBEARER without a bearer token")
    return found[1]
