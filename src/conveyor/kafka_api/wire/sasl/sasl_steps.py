"""The answers of a SASL mechanism to a message of the client."""

import re
from typing import NamedTuple, Protocol

from conveyor.kernel.errors import ConveyorError

MAX_PLAIN_BYTES = 1_024

_ESCAPE = re.compile("=(2C|3D)?")


class SaslFailed(ConveyorError):  # noqa: N818 - named for what it is
    """The client has not proved who it is. The text is for the log: the client learns nothing of it."""


class Challenge(NamedTuple):
    """The exchange goes on. message: for the client."""

    message: bytes


class Authenticated(NamedTuple):
    """The client is this user. message: for the client."""

    user: str
    message: bytes


class PasswordWanted(NamedTuple):
    """The client is this user if the password is the user's. To check it takes long."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"PasswordWanted(user={self.user!r})"


class TokenWanted(NamedTuple):
    """The client is the user whom the token names. To check it may take long.

    identity: the user as whom the client wants to act; empty for the one of the token.
    """

    token: str
    identity: str

    def __repr__(self) -> str:
        return f"TokenWanted(identity={self.identity!r})"


class ExchangeRefused(NamedTuple):
    """The client knows that it is refused. The exchange is over."""


Step = Challenge | Authenticated | PasswordWanted | TokenWanted | ExchangeRefused


class SaslExchange(Protocol):
    """An exchange of messages by one mechanism."""

    def step(self, message: bytes) -> Step:
        """Process a message of the client. Raises SaslFailed."""


def decoded(message: bytes) -> str:
    """Return a message as text. Raises SaslFailed."""
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SaslFailed("a message that is not UTF-8") from None


def unescaped(name: str) -> str:
    """Return a name in which `=2C` and `=3D` stand for a comma and an equals sign. Raises SaslFailed."""

    def character(found: re.Match[str]) -> str:
        if found[1] is None:
            raise SaslFailed("malformed name of a user")
        return "," if found[1] == "2C" else "="

    return _ESCAPE.sub(character, name)


class PlainExchange:
    """PLAIN: one message with the user and the password. Source: RFC 4616."""

    def step(self, message: bytes) -> PasswordWanted:
        """Process the message of the client. Raises SaslFailed."""
        parts = decoded(message).split("\0")
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise SaslFailed("malformed message of PLAIN")
        if len(message) > MAX_PLAIN_BYTES:
            raise SaslFailed("a message of PLAIN that is too long")
        identity, user, password = parts
        if identity not in ("", user):
            raise SaslFailed("a user cannot act as another one")
        return PasswordWanted(user, password)
