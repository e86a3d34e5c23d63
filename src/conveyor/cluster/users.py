"""Users: which changes of their credentials are permitted. Source: KIP-554, ScramControlManager."""

from collections.abc import Mapping, Sequence

import msgspec

from conveyor.cluster.changes import ScramPut
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.access.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism, credential_of
from conveyor.kernel.errors import ErrorKind, RequestError

MAX_USER_BYTES = 255
MAX_SALT_BYTES = 1024

_MECHANISMS = {mechanism.number: mechanism for mechanism in ScramMechanism}


class Upsertion(msgspec.Struct, frozen=True):
    """A new credential, made from a password that only the client has seen. salted_password: see `scram`."""

    iterations: int
    salt: bytes
    salted_password: bytes


class CredentialChange(msgspec.Struct, frozen=True):
    """A change of a user's credential for one mechanism (Kafka's number). upsertion: None removes it."""

    user: str
    mechanism: int
    upsertion: Upsertion | None = None


def changed_credentials(
    image: ClusterImage, changes: Sequence[CredentialChange]
) -> tuple[list[ScramPut], dict[str, RequestError | None]]:
    """Return what to change in the image, and the error of each user: of a user with an error nothing changes."""
    by_user: dict[str, list[CredentialChange]] = {}
    for change in changes:
        by_user.setdefault(change.user, []).append(change)
    puts: list[ScramPut] = []
    errors: dict[str, RequestError | None] = {}
    for user, of_user in by_user.items():
        try:
            puts += _puts(image, user, of_user)
            errors[user] = None
        except RequestError as error:
            errors[user] = error.detached()
    return puts, errors


def described(image: ClusterImage) -> Mapping[str, list[tuple[ScramMechanism, int]]]:
    """Return the mechanisms and iterations of each user's credentials."""
    users: dict[str, list[tuple[ScramMechanism, int]]] = {}
    for (user, mechanism), credential in image.scram.items():
        users.setdefault(user, []).append((mechanism, credential.iterations))
    return users


def _puts(image: ClusterImage, user: str, changes: Sequence[CredentialChange]) -> list[ScramPut]:
    if not user:
        raise _unacceptable("a user's name is not empty")
    if len(user.encode()) > MAX_USER_BYTES:
        raise _unacceptable(f"a user's name has at most {MAX_USER_BYTES} bytes")
    if len({change.mechanism for change in changes}) < len(changes):
        raise RequestError(ErrorKind.DUPLICATE_RESOURCE, "a credential cannot be changed twice in one request")
    return [_put(image, user, change) for change in changes]


def _put(image: ClusterImage, user: str, change: CredentialChange) -> ScramPut:
    mechanism = _MECHANISMS.get(change.mechanism)
    if mechanism is None:
        raise RequestError(
            ErrorKind.UNSUPPORTED_SASL_MECHANISM,
            f"mechanism {change.mechanism} is unknown: 1 is SHA-256, 2 SHA-512",
        )
    upsertion = change.upsertion
    if upsertion is None:
        if (user, mechanism) not in image.scram:
            raise RequestError(ErrorKind.RESOURCE_NOT_FOUND, f"user {user!r} has no credential for {mechanism}")
        return ScramPut(user=user, mechanism=mechanism, credential=None)
    if not MIN_ITERATIONS <= upsertion.iterations <= MAX_ITERATIONS:
        limits = f"at least {MIN_ITERATIONS}, at most {MAX_ITERATIONS}"
        raise _unacceptable(f"{upsertion.iterations} iterations: {limits} are permitted")
    if not 0 < len(upsertion.salt) <= MAX_SALT_BYTES:
        raise _unacceptable(f"a salt of {len(upsertion.salt)} bytes: it has 1 to {MAX_SALT_BYTES}")
    if len(upsertion.salted_password) != mechanism.digest_bytes:
        size = len(upsertion.salted_password)
        raise _unacceptable(f"a salted password of {size} bytes: for {mechanism} it has {mechanism.digest_bytes}")
    credential = credential_of(mechanism, upsertion.salt, upsertion.salted_password, upsertion.iterations)
    return ScramPut(user=user, mechanism=mechanism, credential=credential)


def _unacceptable(reason: str) -> RequestError:
    return RequestError(ErrorKind.UNACCEPTABLE_CREDENTIAL, reason)
