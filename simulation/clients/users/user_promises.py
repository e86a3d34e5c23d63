"""The promises made to users and to the operator who changes them.

Invariants, by the names that failures report:

    LoginsHold          a broker lets in who proves the password that its image has, and nobody else
    NothingAfterItsUser an answer leaves a broker only while its image has the credential that its client has proved

Both are judged by the image of the broker itself: until a change has arrived there, the broker cannot know of it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from conveyor.kernel.access.scram import ScramCredential, ScramMechanism
from simulation.doors.kafka_link import Watch
from simulation.ledger import InvariantBroken
from simulation.simulated_broker import SimulatedBroker

_FAILED = 58

Users = Mapping[tuple[str, ScramMechanism], ScramCredential]


class Known(NamedTuple):
    """What a client proves to a broker: that it knows the password of this credential."""

    broker: SimulatedBroker
    user: str
    mechanism: ScramMechanism
    credential: ScramCredential

    @property
    def users(self) -> Users:
        """All credentials that the broker knows of now; another object once one has changed."""
        inside = self.broker.node
        return {} if inside is None else inside.metadata.image.scram

    @property
    def is_current(self) -> bool:
        """True if the broker knows the credential now."""
        return self.users.get((self.user, self.mechanism)) == self.credential

    def __str__(self) -> str:
        return f"{self.user} at {self.broker.host}"


class LoginWatch(Watch):
    """Watches the messages of one login. See LoginsHold."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._seen: list[Users] = []
        """What the broker knew each time that a message came or was answered."""

    def arrived(self) -> None:
        self._seen.append(self._known.users)

    def answered(self, response: Any) -> None:
        known, now = self._known, self._known.users
        self._seen.append(now)
        is_challenge = response.error_code == 0 and response.auth_bytes.startswith(b"r=")
        if response.error_code == 0 and not is_challenge and not known.is_current:
            raise InvariantBroken("LoginsHold", f"{known} is let in by a password of before")
        if response.error_code == _FAILED and known.is_current and all(seen is now for seen in self._seen):
            raise InvariantBroken("LoginsHold", f"{known} is refused: {response.error_message}")


class ServiceWatch(Watch):
    """Watches an answer after the login. See NothingAfterItsUser."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def answered(self, response: Any) -> None:
        if not self._known.is_current:
            raise InvariantBroken("NothingAfterItsUser", f"{self._known} is served although the user has changed")
