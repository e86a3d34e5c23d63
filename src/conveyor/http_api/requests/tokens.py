"""Bearer tokens. A client with a token may do everything; a client without one may only use public endpoints."""

import hmac
from collections.abc import Mapping
from pathlib import Path

from conveyor.http.engine.http_request import Request
from conveyor.http_api.requests.access_keys import NO_KEYS, AccessKey
from conveyor.kernel.errors import SettingsError


class Tokens:
    """The valid tokens. Without tokens every client is admitted; such a broker listens only on loopback.

    access_keys: by which users sign requests to SQS, by their ids.
    """

    def __init__(self, tokens: tuple[str, ...] = (), access_keys: Mapping[str, AccessKey] = NO_KEYS) -> None:
        self.access_keys = access_keys
        self._tokens = [token.encode() for token in tokens]

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def admit(self, request: Request) -> bool:
        """Return whether a request has a valid token. Takes constant time, however much of the token matches."""
        if not self._tokens:
            return True
        scheme, _, token = (request.header(b"authorization") or "").partition(" ")
        sent_token = token.strip().encode("utf-8", "surrogateescape")
        matches = [hmac.compare_digest(sent_token, token) for token in self._tokens]
        return scheme.lower() == "bearer" and any(matches)


def read_tokens(path: str, access_keys: Mapping[str, AccessKey] = NO_KEYS) -> Tokens:
    """Read tokens from a file, one per line. Empty lines and lines that begin with # are ignored.

    path: empty for no tokens. Raises SettingsError.
    """
    if not path:
        return Tokens(access_keys=access_keys)
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"--token-file {path} cannot be read: {reason}") from error
    tokens = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not tokens:
        raise SettingsError(f"--token-file {path} contains no token: write one per line")
    if any(" " in token or not token.isascii() for token in tokens):
        raise SettingsError(f"--token-file {path}: a token consists of printable ASCII characters without spaces")
    return Tokens(tuple(tokens), access_keys)
