"""Which changes of credentials are permitted: of each user all, or none."""

import pytest

from conveyor.cluster.changes import ScramPut, fold, whole_image
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.users import (
    NOBODY,
    CredentialChange,
    Upsertion,
    changed_credentials,
    mechanisms_of,
    new_credential,
    user_names,
)
from conveyor.kernel.access.scram import ScramMechanism, is_password, salted_password
from conveyor.kernel.errors import ErrorKind, RequestError

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SALT = b"salt"


def upsertion(password: str = "secret", mechanism: ScramMechanism = SHA_256, iterations: int = 4096) -> Upsertion:
    return Upsertion(iterations, SALT, salted_password(mechanism, password, SALT, iterations))


def with_users(*changes: CredentialChange, image: ClusterImage | None = None) -> ClusterImage:
    image = image or ClusterImage()
    puts, errors = changed_credentials(image, [new_credential(change) for change in changes])
    assert set(errors.values()) == {None}
    return fold(image, puts, image.seq + 1)


def described(image: ClusterImage) -> dict[str, list[tuple[ScramMechanism, int]]]:
    return {user: mechanisms_of(image, user) for user in user_names(image)}


ALICE = CredentialChange("alice", 1, upsertion())
USERS = with_users(ALICE, CredentialChange("bob", 2, upsertion("other", SHA_512, 16_384)))


def changed(*changes: CredentialChange) -> tuple[list[ScramPut], dict[str, RequestError | None]]:
    return changed_credentials(USERS, [new_credential(change) for change in changes])


def test_users_are_in_the_image() -> None:
    assert described(USERS) == {"alice": [(SHA_256, 4096)], "bob": [(SHA_512, 16_384)]}
    assert is_password(SHA_256, USERS.scram["alice", SHA_256], "secret")
    assert not is_password(SHA_256, USERS.scram["alice", SHA_256], "other")
    assert is_password(SHA_512, USERS.scram["bob", SHA_512], "other")
    assert fold(ClusterImage(), whole_image(USERS), 1).scram == USERS.scram


def test_credential_is_replaced_or_removed() -> None:
    changed = with_users(CredentialChange("alice", 1, upsertion("new")), CredentialChange("bob", 2), image=USERS)
    assert described(changed) == {"alice": [(SHA_256, 4096)]}
    assert is_password(SHA_256, changed.scram["alice", SHA_256], "new")
    both = with_users(CredentialChange("alice", 2, upsertion("new", SHA_512)), image=USERS)
    assert described(both)["alice"] == [(SHA_256, 4096), (SHA_512, 4096)]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (CredentialChange("", 1, upsertion()), ErrorKind.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("ä" * 128, 1, upsertion()), ErrorKind.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("a\nb", 1, upsertion()), ErrorKind.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("\x1b]0;x\x07", 1, upsertion()), ErrorKind.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("ANONYMOUS", 1, upsertion()), ErrorKind.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("eve", 0, upsertion()), ErrorKind.UNSUPPORTED_SASL_MECHANISM),
        (CredentialChange("eve", 3), ErrorKind.UNSUPPORTED_SASL_MECHANISM),
        (CredentialChange("eve", 1, Upsertion(4095, SALT, bytes(32))), ErrorKind.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("eve", 1, Upsertion(16_385, SALT, bytes(32))), ErrorKind.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("eve", 1, Upsertion(4096, b"", bytes(32))), ErrorKind.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("eve", 1, Upsertion(4096, bytes(1025), bytes(32))), ErrorKind.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("eve", 1, Upsertion(4096, SALT, bytes(64))), ErrorKind.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("eve", 2, Upsertion(4096, SALT, b"")), ErrorKind.UNACCEPTABLE_CREDENTIAL),
        (CredentialChange("alice", 2), ErrorKind.RESOURCE_NOT_FOUND),
        (CredentialChange("eve", 1), ErrorKind.RESOURCE_NOT_FOUND),
    ],
)
def test_change_that_cannot_be_leaves_its_user_alone(change: CredentialChange, kind: ErrorKind) -> None:
    good = CredentialChange(change.user, 1 if change.mechanism == 2 else 2, upsertion(mechanism=SHA_512))
    puts, errors = changed(CredentialChange("bob", 2), change, good)
    error = errors[change.user]
    assert error is not None
    assert error.kind is kind
    assert puts == [ScramPut(user="bob", mechanism=SHA_512, credential=None)]
    assert errors["bob"] is None


def test_one_credential_is_changed_once() -> None:
    puts, errors = changed(ALICE, CredentialChange("alice", 1))
    error = errors["alice"]
    assert error is not None
    assert (puts, error.kind) == ([], ErrorKind.DUPLICATE_RESOURCE)


def test_key_of_decoys_is_no_user() -> None:
    image = fold(USERS, [ScramPut(user=NOBODY[0], mechanism=NOBODY[1], credential=USERS.scram["alice", SHA_256])], 9)
    assert described(image) == described(USERS)


def test_secrets_are_not_shown() -> None:
    assert repr(ALICE) == "CredentialChange(user='alice', mechanism=1, upsertion=Upsertion(iterations=4096))"
