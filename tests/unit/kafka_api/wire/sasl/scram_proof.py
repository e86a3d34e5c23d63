"""The proof of a client of SCRAM, computed as RFC 5802 writes it."""

import hashlib
import hmac
from base64 import b64decode, b64encode

from conveyor.kernel.access.scram import ScramMechanism


def proof(mechanism: ScramMechanism, password: str, first_bare: str, answer: str, final: str) -> str:
    """Return the proof of a client, which knows the password.

    first_bare: the first message without its header. answer: the server's. final: the last message without the proof.
    """
    fields = dict(part.split("=", 1) for part in answer.split(","))
    name = mechanism.hash_name
    salted = hashlib.pbkdf2_hmac(name, password.encode(), b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", name)
    message = f"{first_bare},{answer},{final}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), message, name)
    return b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
