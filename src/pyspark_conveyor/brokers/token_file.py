"""Bearer tokens in a file: clients with `sasl.mechanism=OAUTHBEARER` read it each time that they log in.

The option has the name and the form that it has for Java's clients: `sasl.oauthbearer.token.endpoint.url=file:///path`.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark_conveyor.pipeline_errors import PipelineError

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the name of an option


class TokenFile:
    """A file that holds a token, a JWT. url: such as `file:///path`. Raises PipelineError for another URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc or not parts.path.startswith("/"):
            raise PipelineError(f"{TOKEN_URL} is {url!r}: it takes the URL of a file, such as file:///path/token")
        self._path = Path(unquote(parts.path))

    def read(self) -> str:
        """Return the token that the file has now. Raises PipelineError."""
        try:
            token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PipelineError(f"{self._path} ({TOKEN_URL}) cannot be read: {error}") from error
        if not re.fullmatch("[!-~]+", token):
            raise PipelineError(f"{self._path} ({TOKEN_URL}) holds no token: one consists of ASCII without spaces")
        return token

    def oauth_cb(self, _: str) -> tuple[str, float]:
        """Return the token and its end, in seconds since 1970, as confluent-kafka asks for it. Raises PipelineError."""
        token = self.read()
        try:
            payload = token.split(".")[1]
            return token, float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
        except (IndexError, KeyError, TypeError, ValueError, binascii.Error) as error:
            raise PipelineError(f"{self._path} ({TOKEN_URL}) holds no token with an end (exp)") from error

    def kafka_python(self) -> Any:
        """Return what kafka-python asks for the token."""
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            token = staticmethod(self.read)

        return Provider()


def confluent_options(client_options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a confluent-kafka client, for the same ones with a file of tokens. Raises PipelineError."""
    options: dict[str, Any] = dict(client_options)
    url = options.pop(TOKEN_URL, None)
    return options if url is None else options | {"oauth_cb": TokenFile(url).oauth_cb}
