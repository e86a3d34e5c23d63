"""The users of the cluster, and the proof that a client is one of them. The image has their credentials (SCRAM).

A credential that nobody has stands for a user who does not exist, so that strangers do not learn who does: the same one
for the same name as long as this process runs.
"""

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from functools import cached_property

from conveyor.broker.services import Services
from conveyor.cluster.changes import ScramPut
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.users import CredentialChange, changed_credentials
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.access.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism, is_password
from conveyor.kernel.errors import RequestError
from conveyor.kernel.signal import Signal

Held = tuple[ScramCredential | None, ...]
"""A user's credential for each mechanism."""


class Credentials:
    """See the module's docstring. changed: tells the users whose credentials have changed or are gone."""

    def __init__(self, services: Services) -> None:
        self.changed: Signal[frozenset[str]] = Signal()
        self._metadata = services.metadata
        self._threads = services.threads
        self._new_id = services.new_id
        self._checking = asyncio.Lock()
        services.metadata.listen(self._observe)

    @cached_property
    def _decoy_key(self) -> bytes:
        return self.nonce().encode()

    def nonce(self) -> str:
        """Return random text of printable characters, without a comma."""
        return self._new_id().hex + self._new_id().hex

    def held(self, user: str) -> Held:
        """Return the user's credentials, which are others once the password has changed."""
        image = self._metadata.image
        return tuple(image.scram.get((user, mechanism)) for mechanism in ScramMechanism)

    def scram(self, mechanism: ScramMechanism, user: str) -> tuple[ScramCredential, bool]:
        """Return a user's credential, and whether the user has one; otherwise it is one that nobody has."""
        credential = self._metadata.image.scram.get((user, mechanism))
        return (self._decoy(mechanism, user), False) if credential is None else (credential, True)

    async def is_password(self, user: str, password: str) -> bool:
        """Return whether a password is the user's. It takes as long for a user who does not exist."""
        credentials = [(mechanism, *self.scram(mechanism, user)) for mechanism in ScramMechanism]
        mechanism, credential, is_known = next((each for each in credentials if each[2]), credentials[0])
        async with self._checking:  # One at a time: other threads write to disks.
            is_right = await asyncio.get_running_loop().run_in_executor(
                self._threads, is_password, mechanism, credential, password
            )
        return is_right and is_known and self.scram(mechanism, user) == (credential, True)

    async def alter(self, caller: Caller, changes: Sequence[CredentialChange]) -> Mapping[str, RequestError | None]:
        """Change credentials, durably and with immediate effect: of each user all, or none. Returns the errors.

        Raises RequestError if nothing could be changed.
        """
        errors: dict[str, RequestError | None] = {}

        def decide(image: ClusterImage) -> list[ScramPut]:
            nonlocal errors
            puts, errors = changed_credentials(image, changes)
            return puts

        await self._metadata.propose(decide)
        return errors

    def _decoy(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        name = f"{mechanism}\0{user}".encode()
        key = hmac.digest(self._decoy_key, b"key\0" + name, mechanism.hash_name)
        salt = hmac.digest(self._decoy_key, b"salt\0" + name, "sha256")
        return ScramCredential(salt, key, key, MIN_ITERATIONS)

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.scram is not new.scram:
            gone = {user for (user, mechanism), held in old.scram.items() if new.scram.get((user, mechanism)) != held}
            if gone:
                self.changed.emit(frozenset(gone))
