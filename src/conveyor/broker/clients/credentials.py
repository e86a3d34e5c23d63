"""The users of the cluster, and the proof that a client is one of them. The image has their credentials (SCRAM).

A decoy stands for a user who does not exist, so that strangers do not learn who does. Its key is in the image, too, as
the credential of nobody.

To check a password takes milliseconds, so one thread does it for one client after the other, and of one address for one
at a time: somebody who tries many passwords delays the others little.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from weakref import WeakValueDictionary

from conveyor.broker.services import Services
from conveyor.cluster.changes import ScramPut
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.users import MAX_CHANGES, NOBODY, CredentialChange, Made, changed_credentials, new_credential
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.access.decoys import Decoys
from conveyor.kernel.access.refusal_log import RefusalLog
from conveyor.kernel.access.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism, is_password
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import random_secret
from conveyor.kernel.signal import Signal

log = logging.getLogger(__name__)

_CHANGES_IN_SLICE = 100
_REFUSAL_PAUSE_S = 0.1
"""Source: connection.failed.authentication.delay.ms."""

Held = tuple[ScramCredential | None, ...]
"""A user's credential for each mechanism."""


class Credentials:
    """See the module's docstring.

    changed: tells the users whose credentials have changed or are gone. refusals: of logins. expired_sessions: the
    connections that were closed because their clients did not log in again.
    """

    def __init__(self, services: Services) -> None:
        self.changed: Signal[frozenset[str]] = Signal()
        self.refusals = RefusalLog()
        self.expired_sessions = 0
        self._clock = services.clock
        self._metadata = services.metadata
        self._slices = services.slices
        self._threads = services.threads
        self._new_id = services.new_id
        self._made_decoys: Decoys | None = None
        self._room = asyncio.Semaphore(1)
        self._lanes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One for each address."""
        services.metadata.listen(self._observe)

    def nonce(self) -> str:
        """Return random text of printable characters, without a comma."""
        return self._new_id().hex + self._new_id().hex

    def held(self, user: str) -> Held:
        """Return the user's credentials, which are others once the password has changed."""
        image = self._metadata.image
        return tuple(image.scram.get((user, mechanism)) for mechanism in ScramMechanism)

    def scram(self, mechanism: ScramMechanism, user: str) -> tuple[ScramCredential, bool]:
        """Return a user's credential, and whether the user has one; otherwise it is a decoy."""
        decoy = self._decoys.credential(mechanism, user)  # A user who exists costs as much.
        credential = self._metadata.image.scram.get((user, mechanism))
        return (decoy, False) if credential is None else (credential, True)

    async def is_password(self, caller: Caller, user: str, password: str) -> bool:
        """Return whether a password is the user's."""
        async with self._lanes.setdefault(caller.address, asyncio.Lock()):
            await self._room.acquire()
            looks = self._decoys.looks(user)
            mechanism = next(mechanism for mechanism, look in zip(ScramMechanism, looks, strict=True) if look)
            credential, is_known = self.scram(mechanism, user)
            checking = asyncio.get_running_loop().run_in_executor(
                self._threads, is_password, mechanism, credential, password
            )
            checking.add_done_callback(lambda _: self._room.release())  # Also if nobody waits for it any more.
            is_right = await asyncio.shield(checking)
        return is_right and is_known and self.scram(mechanism, user) == (credential, True)

    async def refuse(self, caller: Caller, mechanism: str, reason: str) -> None:
        """Count and log that a client has not proved who it is, and wait until it may learn that.

        reason: may contain what the client has sent.
        """
        level = self.refusals.level(self._clock.steady_ms() / 1000)
        log.log(level, "login refused caller=%s mechanism=%s reason=%s", caller, mechanism, reason)
        await asyncio.sleep(_REFUSAL_PAUSE_S)

    async def alter(self, caller: Caller, changes: Sequence[CredentialChange]) -> Mapping[str, RequestError | None]:
        """Change credentials, durably and with immediate effect: of each user all, or none. Returns the errors.

        Raises RequestError if nothing could be changed.
        """
        if len(changes) > MAX_CHANGES:
            many = f"{len(changes)} changes of credentials: a request may have {MAX_CHANGES}"
            raise RequestError(ErrorKind.INVALID_REQUEST, many)
        made: list[Made] = []
        for number, change in enumerate(changes):
            if number % _CHANGES_IN_SLICE == 0:
                await self._slices.turn()
            made.append(new_credential(change))
        salt, stored_key, server_key = (random_secret(self._new_id) for _ in range(3))
        nobody = ScramCredential(salt, stored_key, server_key, MIN_ITERATIONS)
        errors: dict[str, RequestError | None] = {}

        def decide(image: ClusterImage) -> list[ScramPut]:
            nonlocal errors
            puts, errors = changed_credentials(image, made)
            if puts and NOBODY not in image.scram:
                puts.append(ScramPut(user=NOBODY[0], mechanism=NOBODY[1], credential=nobody))
            return puts

        await self._metadata.propose(decide)
        return errors

    @cached_property
    def _own_key(self) -> bytes:
        """The key of decoys before the first user is made."""
        return random_secret(self._new_id)

    @property
    def _decoys(self) -> Decoys:
        """Those of this image."""
        if self._made_decoys is None:
            held = self._metadata.image.scram
            nobody = held.get(NOBODY)
            self._made_decoys = Decoys(self._own_key if nobody is None else nobody.stored_key, held)
        return self._made_decoys

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.scram is not new.scram:
            self._made_decoys = None
            gone = {user for (user, mechanism), held in old.scram.items() if new.scram.get((user, mechanism)) != held}
            if gone:
                self.changed.emit(frozenset(gone))
