"""Users: which changes of their credentials are permitted. Source: KIP-554, ScramControlManager."""

from collections.abc import Sequence

import msgspec

from conveyor.cluster.changes import ScramPut
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.access.caller import ANONYMOUS, MAX_USER_BYTES, is_user_name
from conveyor.kernel.access.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    credential_of,
)
from conveyor.kernel.errors import ErrorKind, RequestError

MAX_CHANGES = 1_000
"""In one request. Each takes some hashes."""
MAX_SALT_BYTES = 1024
NOBODY = ("", ScramMechanism.SHA_256)
"""The owner of the credential whose key is that of decoys: no user has an empty name."""

_MECHANISMS = {mechanism.number: mechanism for mechanism in ScramMechanism}


class Upsertion(msgspec.Struct, frozen=True):
    """A new credential, made from a password that only the client has seen. salted_password: see `scram`."""

    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Upsertion(iterations={self.iterations})"


class CredentialChange(msgspec.Struct, frozen=True):
    """A change of a user's credential for one mechanism (Kafka's number). upsertion: None removes it."""

    user: str
    mechanism: int
    upsertion: Upsertion | None = None


Made = tuple[CredentialChange, ScramCredential | RequestError | None]
"""A change, and the new credential, or why there is none. None: the change removes one."""


def new_credential(change: CredentialChange) -> Made:
    """Make the credential of a change, which takes some hashes."""
    try:
        return change, _made(change)
    except RequestError as error:
        return change, error.detached()


def changed_credentials(
    image: ClusterImage, changes: Sequence[Made]
) -> tuple[list[ScramPut], dict[str, RequestError | None]]:
    """Return what to change in the image, and the error of each user: of a user with an error nothing changes."""
    by_user: dict[str, list[Made]] = {}
    for made in changes:
        by_user.setdefault(made[0].user, []).append(made)
    puts: list[ScramPut] = []
    errors: dict[str, RequestError | None] = {}
    for user, of_user in by_user.items():
        try:
            puts += _puts(image, user, of_user)
            errors[user] = None
        except RequestError as error:
            errors[user] = error.detached()
    return puts, errors


def user_names(image: ClusterImage) -> list[str]:
    """Return the users who have credentials."""
    return list(dict.fromkeys(user for user, _ in image.scram if user != NOBODY[0]))


def mechanisms_of(image: ClusterImage, user: str) -> list[tuple[ScramMechanism, int]]:
    """Return the mechanisms and iterations of a user's credentials."""
    if user == NOBODY[0]:
        return []
    held = ((mechanism, image.scram.get((user, mechanism))) for mechanism in ScramMechanism)
    return [(mechanism, credential.iterations) for mechanism, credential in held if credential is not None]


def _puts(image: ClusterImage, user: str, changes: Sequence[Made]) -> list[ScramPut]:
    if len({change.mechanism for change, _ in changes}) < len(changes):
        raise RequestError(ErrorKind.DUPLICATE_RESOURCE, "a credential cannot be changed twice in one request")
    return [_put(image, user, *made) for made in changes]


def _put(
    image: ClusterImage, user: str, change: CredentialChange, made: ScramCredential | RequestError | None
) -> ScramPut:
    if isinstance(made, RequestError):
        raise made
    mechanism = _MECHANISMS[change.mechanism]
    if made is None and (user, mechanism) not in image.scram:
        raise RequestError(ErrorKind.RESOURCE_NOT_FOUND, f"user {user!r} has no credential for {mechanism}")
    return ScramPut(user=user, mechanism=mechanism, credential=made)


def _made(change: CredentialChange) -> ScramCredential | None:
    user, upsertion = change.user, change.upsertion
    if not is_user_name(user):
        raise _unacceptable(f"a user's name has 1 to {MAX_USER_BYTES} bytes of printable characters")
    mechanism = _MECHANISMS.get(change.mechanism)
    if mechanism is None:
        known = f"mechanism {change.mechanism} is unknown: 1 is SHA-256, 2 SHA-512"
        raise RequestError(ErrorKind.UNSUPPORTED_SASL_MECHANISM, known)
    if upsertion is None:
        return None
    if user == ANONYMOUS.name:
        raise _unacceptable(f"{user} is the name of clients who do not log in")
    if not MIN_ITERATIONS <= upsertion.iterations <= MAX_ITERATIONS:
        limits = f"at least {MIN_ITERATIONS}, at most {MAX_ITERATIONS}"
        raise _unacceptable(f"{upsertion.iterations} iterations: {limits} are permitted")
    if not 0 < len(upsertion.salt) <= MAX_SALT_BYTES:
        raise _unacceptable(f"a salt of {len(upsertion.salt)} bytes: it has 1 to {MAX_SALT_BYTES}")
    if len(upsertion.salted_password) != mechanism.digest_bytes:
        size = len(upsertion.salted_password)
        raise _unacceptable(f"a salted password of {size} bytes: for {mechanism} it has {mechanism.digest_bytes}")
    return credential_of(mechanism, upsertion.salt, upsertion.salted_password, upsertion.iterations)


def _unacceptable(reason: str) -> RequestError:
    return RequestError(ErrorKind.UNACCEPTABLE_CREDENTIAL, reason)
