"""How the clients of a test connect: CONFORMANCE_SECURITY in the environment is a JSON object; unset, in the clear.

protocol       Kafka's name of the security protocol, such as SSL
ca             a file (PEM): the authority that has signed the broker's certificate
certificate    a file (PEM): the client's own certificate, for mutual TLS
key            a file (PEM): the key of that certificate
"""

import json
import os
from collections.abc import Mapping

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


def librdkafka(bootstrap: str) -> dict[str, str]:
    """Return the settings by which librdkafka connects."""
    return {"bootstrap.servers": bootstrap} | security(_LIBRDKAFKA)
