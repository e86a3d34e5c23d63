"""SCRAM: what the metadata keeps in place of a user's password, and what can be checked with it.

Names and passwords are UTF-8 as they are, without SASLprep, as in Kafka. Source: RFC 5802, RFC 7677, KIP-84, KIP-554.
"""

import hashlib
import hmac
from enum import StrEnum
from hmac import compare_digest
from typing import NamedTuple

import msgspec

MIN_ITERATIONS, MAX_ITERATIONS = 4_096, 16_384
"""Kafka's limits. A client computes so many hashes for each login."""
SALT_BYTES = 24
"""Of a salt that Conveyor makes."""


class ScramMechanism(StrEnum):
    """The mechanisms, by their names in SASL."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def number(self) -> int:
        """Kafka's number of the mechanism."""
        return 1 if self is ScramMechanism.SHA_256 else 2

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def digest_bytes(self) -> int:
        return 32 if self is ScramMechanism.SHA_256 else 64


class ScramCredential(msgspec.Struct, frozen=True, array_like=True):
    """A user's credential for one mechanism. Nobody can log in with it: it only proves who knows the password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class Proof(NamedTuple):
    """The proof of a client at the end of its exchange. message: RFC 5802's AuthMessage."""

    message: bytes
    client_proof: bytes


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the password's hash, which stands for the password: keep it nowhere. It takes some milliseconds."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salt: bytes, salted: bytes, iterations: int) -> ScramCredential:
    """Return the credential of the user with a salted password."""
    name = mechanism.hash_name
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", name), iterations)


def is_password(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Return whether a password is the user's. It takes some milliseconds."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    stored_key = credential_of(mechanism, credential.salt, salted, credential.iterations).stored_key
    return compare_digest(stored_key, credential.stored_key)


def is_proved(mechanism: ScramMechanism, credential: ScramCredential, proof: Proof) -> bool:
    """Return whether the client that made a proof knows the password."""
    name = mechanism.hash_name
    signature = hmac.digest(credential.stored_key, proof.message, name)
    if len(proof.client_proof) != len(signature):
        return False
    client_key = bytes(ours ^ theirs for ours, theirs in zip(signature, proof.client_proof, strict=True))
    return compare_digest(hashlib.new(name, client_key).digest(), credential.stored_key)


def server_signature(mechanism: ScramMechanism, credential: ScramCredential, message: bytes) -> bytes:
    """Return what proves to the client that this server has its credential."""
    return hmac.digest(credential.server_key, message, mechanism.hash_name)
