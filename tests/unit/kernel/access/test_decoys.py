"""A name without a user looks like one of the users."""

import secrets
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.kernel.access.decoys import MAX_LOOKS, MAX_USERS, Decoys
from conveyor.kernel.access.scram import MIN_ITERATIONS, SALT_BYTES, ScramCredential, ScramMechanism

SECRET = bytes(range(32))
SHA_256, SHA_512 = ScramMechanism
STRANGERS = [f"stranger-{number}" for number in range(1_000)]
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
Held = dict[tuple[str, ScramMechanism], ScramCredential]
NOBODY: Held = {("", SHA_256): ScramCredential(bytes(32), bytes(32), bytes(32), MIN_ITERATIONS)}


def made(salt: bytes, iterations: int = MIN_ITERATIONS) -> ScramCredential:
    return ScramCredential(salt, b"stored", b"server", iterations)


def users(name: str, count: int, salt_bytes: int, iterations: int, *mechanisms: ScramMechanism) -> Held:
    """Make credentials with random salts."""
    return {
        (f"{name}-{number}", mechanism): made(secrets.token_bytes(salt_bytes), iterations)
        for number in range(count)
        for mechanism in mechanisms or (SHA_256, SHA_512)
    }


def shown(held: Held, mechanism: ScramMechanism = SHA_256, names: list[str] = STRANGERS) -> Counter[tuple[int, int]]:
    """Return what strangers see: the length of the salt, and the iterations."""
    decoys = Decoys(SECRET, NOBODY | held)
    made_for = [decoys.credential(mechanism, name) for name in names]
    return Counter((len(decoy.salt), decoy.iterations) for decoy in made_for)


def test_without_users_decoys_are_those_of_conveyors_users() -> None:
    for mechanism in ScramMechanism:
        assert shown({}, mechanism) == {(SALT_BYTES, MIN_ITERATIONS): len(STRANGERS)}


def test_decoys_look_like_the_users_as_often_as_these_do() -> None:
    held = users("librdkafka", 30, 64, 10_000) | users("conveyor", 10, SALT_BYTES, MIN_ITERATIONS)
    counts = shown(held)
    assert set(counts) == {(64, 10_000), (SALT_BYTES, MIN_ITERATIONS)}
    assert counts[64, 10_000] == pytest.approx(750, abs=60)


def test_users_of_one_mechanism_have_decoys_for_the_other() -> None:
    """The check of a password takes the first mechanism that a user has: its decoys have the same."""
    held = users("alice", 1, 64, 10_000, SHA_512)
    decoys = Decoys(SECRET, held)
    assert decoys.looks("eve") == decoys.looks("alice-0")
    assert shown(held, SHA_256) == shown(held, SHA_256, ["alice-0"] * len(STRANGERS))
    assert set(shown(held, SHA_512)) == {(64, 10_000)}


def test_salts_of_java_are_numbers_in_base_36() -> None:
    random = Random(1)
    held: Held = {}
    for number in range(50):
        value, salt = random.getrandbits(130), ""
        while value:
            value, digit = divmod(value, 36)
            salt = DIGITS[digit] + salt
        held[f"java-{number}", SHA_512] = made(salt.encode())
    decoys = Decoys(SECRET, held)
    salts = [decoys.credential(SHA_512, name).salt.decode() for name in STRANGERS]
    assert all(int(salt, 36) < 1 << 130 for salt in salts)
    assert {25, 26} <= {len(salt) for salt in salts} <= {len(credential.salt) for credential in held.values()}
    assert {salt[0] for salt in salts if len(salt) == 26} == {"1"}
    assert {character for salt in salts for character in salt} == set(DIGITS)


def test_most_names_keep_their_looks_and_their_salts() -> None:
    held = users("librdkafka", 50, 64, 10_000) | users("conveyor", 50, SALT_BYTES, MIN_ITERATIONS)
    before, after = Decoys(SECRET, held), Decoys(SECRET, held | users("new", 5, 16, 8_192))
    changed = 0
    for name in STRANGERS:
        old, new = before.credential(SHA_256, name), after.credential(SHA_256, name)
        is_same_look = (len(old.salt), old.iterations) == (len(new.salt), new.iterations)
        assert (old == new) == is_same_look, "a salt that stays while the iterations change tells that there is no user"
        changed += not is_same_look
    assert 0 < changed < len(STRANGERS) / 8


def test_decoys_are_drawn_by_their_secret() -> None:
    held = users("librdkafka", 50, 64, 10_000) | users("conveyor", 50, SALT_BYTES, MIN_ITERATIONS)
    one, other = Decoys(SECRET, held), Decoys(SECRET[::-1], held)
    assert sum(one.looks(name) != other.looks(name) for name in STRANGERS) > len(STRANGERS) / 4
    assert one.credential(SHA_256, "eve").salt[:8] != other.credential(SHA_256, "eve").salt[:8]


def test_order_of_the_users_does_not_matter() -> None:
    """A broker may have them in another order than the next one."""
    held: Held = {}
    for number in range(3 * MAX_LOOKS):
        held |= users(f"kind-{number}", 1, number + 1, MIN_ITERATIONS + number)
    held |= users("more", MAX_USERS, 64, MIN_ITERATIONS)
    items = list(held.items())
    Random(2).shuffle(items)
    one, other = Decoys(SECRET, held), Decoys(SECRET, dict(items))
    assert [one.looks(name) for name in STRANGERS] == [other.looks(name) for name in STRANGERS]


@given(
    salts=st.lists(st.binary(min_size=1, max_size=70) | st.from_regex(rb"[0-9a-z]{1,30}", fullmatch=True), min_size=1),
    name=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_every_name_has_a_decoy_that_looks_like_a_user(salts: list[bytes], name: str) -> None:
    held = {(f"user-{number}", SHA_256): made(salt) for number, salt in enumerate(salts)}
    decoy = Decoys(SECRET, held).credential(SHA_256, name)
    alike = [salt for salt in salts if len(salt) == len(decoy.salt)]
    assert alike
    assert is_number(decoy.salt) or not all(map(is_number, alike))


def is_number(salt: bytes) -> bool:
    """Return whether a salt could be a number in base 36."""
    return all(character in DIGITS.encode() for character in salt) and not salt.startswith(b"0")
