"""How commands connect, and as whom: settings in a file, one `name=value` a line, in the names of librdkafka.

One name is not librdkafka's: a token that is renewed while a command runs can only be read from a file.
"""

import base64
import json
import os
import ssl
import time
from functools import cache
from pathlib import Path
from typing import Any

from conveyor.kernel.errors import ConveyorError

FILE_VARIABLE = "CONVEYOR_CLIENT_CONFIG"

_KAFKA_PYTHON = {
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
"""The settings that clients take as they are, and what kafka-python calls them."""
_TOKEN = "sasl.oauthbearer.token.location"  # noqa: S105 - the name of a setting
"""The file with the bearer token, read each time that a client wants one."""
_ASSUMED_SECONDS = 300
"""For so long a token counts whose end cannot be read."""
_KNOWN = (*_KAFKA_PYTHON, _TOKEN)


class ClientSecurity:
    """The settings of one file; of none, if the path is empty. Raises ConveyorError for a file that cannot be used."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._settings = _settings(Path(path)) if path else {}

    @property
    def is_encrypted(self) -> bool:
        return self._settings.get("security.protocol", "").upper().endswith("SSL")

    @property
    def has_user(self) -> bool:
        return "sasl.username" in self._settings or _TOKEN in self._settings

    @property
    def confluent(self) -> dict[str, Any]:
        """As arguments of a confluent-kafka client. Raises ConveyorError for a token that cannot be read."""
        settings: dict[str, Any] = {name: value for name, value in self._settings.items() if name != _TOKEN}
        if _TOKEN in self._settings:
            self.token()  # The client would tell nobody why it has none.
            settings |= {"oauth_cb": lambda _: (token := self.token(), _end_of(token))}
        return settings

    @property
    def kafka_python(self) -> dict[str, Any]:
        """As arguments of a kafka-python client."""
        named: dict[str, Any] = {_KAFKA_PYTHON[name]: value for name, value in self._settings.items() if name != _TOKEN}
        return named | ({"sasl_oauth_token_provider": self._token_provider()} if _TOKEN in self._settings else {})

    def authorization(self, *, is_encrypted: bool) -> str | None:
        """Return the header by which the user asks over HTTP; None if there is no user, or if the user wants encryption
        and this connection has none. Raises ConveyorError for a token that cannot be read.
        """
        if not self.has_user or (self.is_encrypted and not is_encrypted):
            return None
        if _TOKEN in self._settings:
            return f"Bearer {self.token()}"
        login = f"{self._settings['sasl.username']}:{self._settings.get('sasl.password', '')}"
        return f"Basic {base64.b64encode(login.encode()).decode()}"

    def token(self) -> str:
        """Return the bearer token that the file has now. Raises ConveyorError."""
        file = self._settings[_TOKEN]
        try:
            token = Path(file).read_text().strip()
        except (OSError, ValueError) as error:
            raise ConveyorError(f"{file} ({_TOKEN} in {self._path}) cannot be read: {error}") from error
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            raise ConveyorError(f"{file} ({_TOKEN} in {self._path}) has no token: printable ASCII without spaces")
        return token

    def https(self) -> ssl.SSLContext:
        """As a context for HTTPS. Raises ConveyorError for files that cannot be used."""
        settings = self._settings
        try:
            context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
            if "ssl.certificate.location" in settings:
                key = settings.get("ssl.key.location"), settings.get("ssl.key.password", "")
                context.load_cert_chain(settings["ssl.certificate.location"], *key)
        except OSError as error:
            raise ConveyorError(f"a file that {self._path} names cannot be used: {error.strerror or error}") from error
        return context

    def _token_provider(self) -> Any:
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class File(AbstractTokenProvider):  # type: ignore[misc]
            token = staticmethod(self.token)

        return File()


def client_security() -> ClientSecurity:
    """Return the settings of the file that the user has named, if any. Raises ConveyorError."""
    return _loaded(os.environ.get(FILE_VARIABLE, ""))


@cache
def _loaded(path: str) -> ClientSecurity:
    return ClientSecurity(path)


def _settings(path: Path) -> dict[str, str]:
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise ConveyorError(f"{path} (--client-config) cannot be read: {error}") from error
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    settings = {name.strip(): value.strip() for name, _, value in pairs}
    unknown = [name for name in settings if name not in _KNOWN]
    if unknown:
        known = ", ".join(_KNOWN)
        raise ConveyorError(f"{path} (--client-config) has {unknown[0]!r}: commands know name=value with {known}")
    return settings


def _end_of(token: str) -> float:
    """Return when a token ends, in seconds since 1970. The broker alone checks the token: a guess does no harm."""
    try:
        payload = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return time.time() + _ASSUMED_SECONDS
