"""The users of a story, and the passwords that they have in turns."""

from functools import cache

from conveyor.kernel.access.scram import (
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)

USERS, PASSWORDS = ("alice", "bob"), ("first", "second")
MECHANISM = ScramMechanism.SHA_256


@cache
def secret(user: str, password: str) -> tuple[bytes, ScramCredential]:
    """Return the salted password that the operator sends, and the credential that it makes."""
    salt = f"salt of {user}".encode()
    salted = salted_password(MECHANISM, password, salt, MIN_ITERATIONS)
    return salted, credential_of(MECHANISM, salt, salted, MIN_ITERATIONS)
