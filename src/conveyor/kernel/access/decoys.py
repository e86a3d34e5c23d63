"""Decoys: credentials in place of those that do not exist, so that nobody learns by logging in which users do.

A stranger sees the salt and the iterations of a credential (SCRAM), and may measure how long the check of a password
takes (PLAIN, Basic). Tools choose these for the users that they make: so a name without a user looks like one of the
users, which a keyed hash of the name draws. The more users look alike, the more decoys look like them. Most names keep
their looks while users come and go. A name that looks different has a new salt, as after a change of its password.
"""

import hashlib
import hmac
import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from heapq import nsmallest
from typing import NamedTuple

from conveyor.kernel.access.scram import MIN_ITERATIONS, SALT_BYTES, ScramCredential, ScramMechanism

MAX_LOOKS = 16
"""Decoys have the most frequent ones."""

MAX_USERS = 1_000
"""The first ones by name stand for all."""

_MECHANISMS = tuple(ScramMechanism)
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
_JAVA_BITS = 130
"""A salt of Kafka's AdminClient for Java: a random number of so many bits, in base 36. Source:
UserScramCredentialUpsertion.
"""

Credentials = Mapping[tuple[str, ScramMechanism], ScramCredential]
"""By user and mechanism."""


class Look(NamedTuple):
    """What others see of a credential. is_number: the salt is a number in base 36."""

    iterations: int
    salt_bytes: int
    is_number: bool


Looks = tuple[Look | None, ...]
"""Of one user, for each mechanism; None if the user has no credential for it."""

_OWN_LOOK = Look(MIN_ITERATIONS, SALT_BYTES, is_number=False)
_OWN_LOOKS: Looks = (_OWN_LOOK,) * len(ScramMechanism)
"""Of the users that Conveyor makes."""


class _Choice(NamedTuple):
    """Looks that some users have. users: how many."""

    name: bytes
    looks: Looks
    users: int


class Decoys:
    """See the module's docstring.

    secret: of the cluster, at most 64 bytes. credentials: of all users; one of the empty name is none of a user.
    """

    def __init__(self, secret: bytes, credentials: Credentials) -> None:
        self._secret = secret
        self._credentials = credentials
        users = nsmallest(MAX_USERS, {user for user, _ in credentials if user})
        counts = Counter(map(self._own_looks, users)) or Counter({_OWN_LOOKS: 1})
        choices = [_Choice(f"{looks}\0".encode(), looks, count) for looks, count in counts.items()]
        self._choices = sorted(choices, key=lambda choice: (-choice.users, choice.name))[:MAX_LOOKS]

    def looks(self, user: str) -> Looks:
        """Return those of a user, or of a name without one."""
        drawn = max(self._choices, key=partial(self._weight, user.encode()))  # Users cost as much as others.
        own = self._own_looks(user)
        return own if any(own) else drawn.looks

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """Return a credential that no password proves. It looks the same on each broker and after each start."""
        look = self.looks(user)[mechanism.number - 1] or _OWN_LOOK
        name = f"{mechanism}\0{look.iterations}\0{look.salt_bytes}\0{look.is_number}\0{user}".encode()
        key = hmac.digest(self._secret, b"key\0" + name, mechanism.hash_name)
        return ScramCredential(self._salt(look, name), key, key, look.iterations)

    def _own_looks(self, user: str) -> Looks:
        return tuple(_look(self._credentials.get((user, mechanism))) for mechanism in _MECHANISMS)

    def _weight(self, user: bytes, choice: _Choice) -> float:
        """Return a number whose maximum is drawn, of each choice as often as its count is high, whatever the other
        choices are. Source: Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006.
        """
        drawn = hashlib.blake2b(choice.name + user, digest_size=8, key=self._secret).digest()
        return math.log((int.from_bytes(drawn) + 1) / 2**64) / choice.users

    def _salt(self, look: Look, name: bytes) -> bytes:
        key = hmac.digest(self._secret, b"salt\0" + name, "sha256")
        random = hashlib.shake_256(key).digest(look.salt_bytes)
        if not look.is_number:
            return random
        first, end = len(_DIGITS) ** (look.salt_bytes - 1), len(_DIGITS) ** look.salt_bytes
        if end.bit_length() > _JAVA_BITS >= first.bit_length():
            end = 1 << _JAVA_BITS
        return _base_36(first + int.from_bytes(random) % (end - first))


def _look(credential: ScramCredential | None) -> Look | None:
    if credential is None:
        return None
    salt = credential.salt
    is_number = salt[:1] != b"0" and not salt.strip(_DIGITS)
    return Look(credential.iterations, len(salt), is_number)


def _base_36(number: int) -> bytes:
    digits = bytearray()
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))
