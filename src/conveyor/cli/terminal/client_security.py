"""How commands connect to brokers with TLS: settings in a file, one `name=value` a line, in the names of librdkafka."""

import os
import ssl
from functools import cache
from pathlib import Path

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
"""The settings, and what kafka-python calls them."""


class ClientSecurity:
    """The settings of one file; of none, if the path is empty. Raises ConveyorError for a file that cannot be used."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.confluent = _settings(Path(path)) if path else {}
        """As arguments of a confluent-kafka client."""

    @property
    def is_encrypted(self) -> bool:
        return self.confluent.get("security.protocol", "").upper().endswith("SSL")

    @property
    def has_user(self) -> bool:
        return "sasl.username" in self.confluent

    @property
    def kafka_python(self) -> dict[str, str]:
        """As arguments of a kafka-python client."""
        return {_KAFKA_PYTHON[name]: value for name, value in self.confluent.items()}

    def https(self) -> ssl.SSLContext:
        """As a context for HTTPS. Raises ConveyorError for files that cannot be used."""
        settings = self.confluent
        try:
            context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
            if "ssl.certificate.location" in settings:
                key = settings.get("ssl.key.location"), settings.get("ssl.key.password", "")
                context.load_cert_chain(settings["ssl.certificate.location"], *key)
        except OSError as error:
            raise ConveyorError(f"a file that {self._path} names cannot be used: {error.strerror or error}") from error
        return context


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
    unknown = [name for name in settings if name not in _KAFKA_PYTHON]
    if unknown:
        known = ", ".join(_KAFKA_PYTHON)
        raise ConveyorError(f"{path} (--client-config) has {unknown[0]!r}: commands know name=value with {known}")
    return settings
