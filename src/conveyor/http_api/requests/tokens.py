"""Bearer tokens: who has one may do everything, who has none may ask whether the broker is well."""

import hmac
from collections.abc import Mapping
from pathlib import Path

from conveyor.kernel.errors import SettingsError


class Tokens:
    """The tokens that are taken. Without any, everybody is let in: such a broker listens on loopback only."""

    def __init__(self, tokens: tuple[str, ...] = ()) -> None:
        self._tokens = [token.encode() for token in tokens]

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def admit(self, headers: Mapping[str, str]) -> bool:
        """Whether a request brings one of the tokens. How long that takes does not tell how much of it is right."""
        if not self._tokens:
            return True
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        brought = token.strip().encode("utf-8", "surrogateescape")
        matches = [hmac.compare_digest(brought, each) for each in self._tokens]
        return scheme.lower() == "bearer" and any(matches)


def read_tokens(path: str) -> Tokens:
    """The tokens of a file: one a line; empty lines and those that begin with # are left out.

    path: empty for no tokens. Raises SettingsError.
    """
    if not path:
        return Tokens()
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"--token-file {path} cannot be read: {reason}") from error
    tokens = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not tokens:
        raise SettingsError(f"--token-file {path} holds no token: write one a line")
    if any(" " in token or not token.isascii() for token in tokens):
        raise SettingsError(f"--token-file {path}: a token has no spaces and nothing but ASCII characters")
    return Tokens(tuple(tokens))
