"""How the clients of a test connect: CONFORMANCE_SECURITY in the environment is a JSON object; unset, in the clear.

protocol       Kafka's name of the security protocol, such as SSL
ca             a file (PEM): the authority that has signed the broker's certificate
certificate    a file (PEM): the client's own certificate, for mutual TLS
key            a file (PEM): the key of that certificate
token          a file: the bearer token with which the client logs in, read each time that the client wants one
mechanism      Kafka's name of the SASL mechanism of a client that logs in by a password, such as SCRAM-SHA-512
user           the name by which it logs in
password       its password
"""

import base64
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

VARIABLE = "CONFORMANCE_SECURITY"

_LIBRDKAFKA = {
    "protocol": "security.protocol",
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "key": "ssl.key.location",
    "mechanism": "sasl.mechanism",
    "user": "sasl.username",
    "password": "sasl.password",
}


def security(names: Mapping[str, str]) -> dict[str, str]:
    """Return the members of the object that are among `names`, by the names that a client has for them."""
    return _renamed(_connection(), names)


def _connection() -> dict[str, str]:
    connection: dict[str, str] = json.loads(os.environ.get(VARIABLE, "{}"))
    return connection


def _renamed(connection: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {names[name]: value for name, value in connection.items() if name in names}


def has_token() -> bool:
    return bool(security({"token": "token"}))


def read_token() -> str:
    """Return the token that the client has now."""
    return token_file().read_text()


def token_file() -> Path:
    return Path(security({"token": "token"})["token"])


def librdkafka(bootstrap: str) -> dict[str, Any]:
    """Return the settings by which librdkafka connects."""
    return librdkafka_of(_connection(), bootstrap)


def librdkafka_of(connection: Mapping[str, str], bootstrap: str) -> dict[str, Any]:
    """As `librdkafka`, for another connection than that of the environment."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap} | _renamed(connection, _LIBRDKAFKA)
    if "token" in connection:
        settings |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": partial(_token_and_end, Path(connection["token"]))}
    return settings


def _token_and_end(file: Path, _: str) -> tuple[str, float]:
    token = file.read_text()
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return token, claims["exp"]
