"""How the clients of a test connect: CONFORMANCE_SECURITY in the environment is a JSON object; unset, in the clear.

protocol       Kafka's name of the security protocol, such as SSL
ca             a file (PEM): the authority that has signed the broker's certificate
certificate    a file (PEM): the client's own certificate, for mutual TLS
key            a file (PEM): the key of that certificate
token          a file: the bearer token with which the client logs in, read each time that the client wants one
"""

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "CONFORMANCE_SECURITY"

_LIBRDKAFKA = {
    "protocol": "security.protocol",
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "key": "ssl.key.location",
}


def security(names: Mapping[str, str]) -> dict[str, str]:
    """Return the members of the object that are among `names`, by the names that a client has for them."""
    given: dict[str, str] = json.loads(os.environ.get(VARIABLE, "{}"))
    return {names[name]: value for name, value in given.items() if name in names}


def has_token() -> bool:
    return bool(security({"token": "token"}))


def read_token() -> str:
    """Return the token that the client has now."""
    return Path(security({"token": "token"})["token"]).read_text()


def librdkafka(bootstrap: str) -> dict[str, Any]:
    """Return the settings by which librdkafka connects."""
    connection: dict[str, Any] = {"bootstrap.servers": bootstrap} | security(_LIBRDKAFKA)
    return connection | {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": _token_and_end} if has_token() else connection


def _token_and_end(_: str) -> tuple[str, float]:
    token = read_token()
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return token, claims["exp"]
