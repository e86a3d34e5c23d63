"""Reads how commands connect, and as whom, from a file: one `name=value` a line, in the names of librdkafka."""

import base64
import os
import ssl
from functools import cache
from pathlib import Path
from typing import Any

from conveyor.kernel.errors import ConveyorError
from pyspark_conveyor.brokers.raw_client import translated
from pyspark_conveyor.brokers.token_file import TOKEN_URL, TokenFile, confluent_options
from pyspark_conveyor.pipeline_errors import PipelineError

FILE_VARIABLE = "CONVEYOR_CLIENT_CONFIG"

_KNOWN = (
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    TOKEN_URL,
)


class ClientSecurity:
    """The settings of one file; of none, if the path is empty. Raises ConveyorError for a file that cannot be used."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.settings = _settings(Path(path)) if path else {}
        """By the names of librdkafka."""

    @property
    def is_encrypted(self) -> bool:
        return self.settings.get("security.protocol", "").upper().endswith("SSL")

    @property
    def has_user(self) -> bool:
        return "sasl.username" in self.settings or TOKEN_URL in self.settings

    @property
    def confluent(self) -> dict[str, Any]:
        """As arguments of a confluent-kafka client. Raises ConveyorError for a token that cannot be read."""
        if TOKEN_URL in self.settings:
            self._token()  # The client would tell nobody why it has none.
        return confluent_options(self.settings)

    @property
    def kafka_python(self) -> dict[str, Any]:
        """As arguments of a kafka-python client."""
        return translated(self.settings)

    def authorization(self, *, is_private: bool) -> str | None:
        """Return the header by which the user asks over HTTP; None if there is no user.

        Raises ConveyorError for a token that cannot be read.
        is_private: nobody else can read the connection. Otherwise None is returned, too, if the settings keep the
        password or the token from others: by encryption, or by SCRAM, which does not send it.
        """
        keeps_secret = self.is_encrypted or self.settings.get("sasl.mechanism", "").upper().startswith("SCRAM")
        if not self.has_user or (keeps_secret and not is_private):
            return None
        if TOKEN_URL in self.settings:
            return f"Bearer {self._token()}"
        login = f"{self.settings['sasl.username']}:{self.settings.get('sasl.password', '')}"
        return f"Basic {base64.b64encode(login.encode()).decode()}"

    def _token(self) -> str:
        try:
            return TokenFile(self.settings[TOKEN_URL]).read()
        except PipelineError as error:
            raise ConveyorError(f"{self._path} (--client-config): {error}") from error

    def https(self) -> ssl.SSLContext:
        """As a context for HTTPS. Raises ConveyorError for files that cannot be used."""
        settings = self.settings
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
    unknown = [name for name in settings if name not in _KNOWN]
    if unknown:
        known = ", ".join(_KNOWN)
        raise ConveyorError(f"{path} (--client-config) has {unknown[0]!r}: commands know name=value with {known}")
    try:
        confluent_options(settings)
    except PipelineError as error:
        raise ConveyorError(f"{path} (--client-config): {error}") from error
    return settings
