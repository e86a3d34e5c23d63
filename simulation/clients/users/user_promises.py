"""The promises made to users and to the operator who changes them.

Invariants, by the names that failures report:

    LoginsHold           a broker lets in who proves the password that its image has, and nobody else
    NothingAfterItsUser  an answer leaves a broker, over Kafka or REST, only while its image has the credential that its
                         client has proved
    NothingAfterItsRight a client is served only what the ACLs of the image allow it: records when they leave, all else
                         while it is done
    RightsHold           a client is refused nothing that the ACLs of the image have allowed since it asked

All are judged by the image of the broker itself: until a change has arrived there, the broker cannot know of it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from conveyor.broker.broker_node import BrokerNode
from conveyor.kernel.access.acl import ANY_USER, Acl, AclOperation, PatternType, Permission
from conveyor.kernel.access.scram import ScramCredential, ScramMechanism
from simulation.doors.kafka_link import Watch
from simulation.ledger import InvariantBroken
from simulation.simulated_broker import SimulatedBroker

_FAILED, _TOPIC_REFUSED = 58, 29
_UNAUTHORIZED, _FORBIDDEN, _UNAVAILABLE = 401, 403, 503

Acls = Iterable[Acl]
Users = Mapping[tuple[str, ScramMechanism], ScramCredential]


class Known(NamedTuple):
    """A client's proof to a broker that it knows the password of this credential."""

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

    @property
    def acls(self) -> Acls:
        """The ACLs that the broker knows of now; another object once one has changed."""
        inside = self.broker.node
        return () if inside is None else inside.metadata.image.acls

    @property
    def replaced_acls(self) -> list[Acls]:
        """The ACLs that were replaced at this moment."""
        is_now = self.broker.acls_replaced_at_s == asyncio.get_running_loop().time()
        return list(self.broker.replaced_acls) if is_now else []

    def __str__(self) -> str:
        return f"{self.user} at {self.broker.host}"


class Right(NamedTuple):
    """An operation that a user wants to execute on a topic."""

    user: str
    operation: AclOperation
    topic: str

    def is_allowed(self, acls: Acls) -> bool:
        """Return whether ACLs allow it: one does, and none denies it."""
        meant = [acl for acl in acls if acl.principal in (f"User:{self.user}", ANY_USER) and self._is_named(acl)]
        is_denied = any(acl.permission is Permission.DENY and acl.operation is self.operation for acl in meant)
        enough = {self.operation, AclOperation.READ, AclOperation.WRITE}
        enough = enough if self.operation is AclOperation.DESCRIBE else {self.operation}
        return not is_denied and any(acl.permission is Permission.ALLOW and acl.operation in enough for acl in meant)

    def _is_named(self, acl: Acl) -> bool:
        is_literal = acl.pattern is PatternType.LITERAL
        return acl.name == self.topic if is_literal else self.topic.startswith(acl.name)

    def __str__(self) -> str:
        return f"{self.operation.value} {self.topic}"


class LoginWatch(Watch):
    """Watches the messages of one login. See LoginsHold."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._seen: list[Users] = []
        """The credentials that the broker knew each time that a message came or was answered."""

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


class RestWatch(Watch):
    """Watches a request over REST, which logs in by itself. See all promises.

    shows: as for `ServiceWatch`, of a document.
    """

    def __init__(self, known: Known, right: Right, shows: Callable[[Any], bool] | None = None) -> None:
        self._known = known
        self._service = ServiceWatch(known, right, _problem_code, shows and (lambda answer: _shows(answer, shows)))
        self._seen: Users = {}
        """What the broker knew when the request came."""

    @property
    def answered_by(self) -> BrokerNode | None:
        """The process that has answered, unless it did not take the login."""
        return self._service.answered_by

    def arrived(self) -> None:
        self._seen = self._known.users
        self._service.arrived()

    def answered(self, response: Any) -> None:
        known = self._known
        is_same = self._seen is known.users
        if response.status >= _UNAVAILABLE:
            return
        if response.status == _UNAUTHORIZED:
            if is_same and known.is_current:
                raise InvariantBroken("LoginsHold", f"{known} is refused over REST")
            return
        if is_same and not known.is_current:
            raise InvariantBroken("LoginsHold", f"{known} is let in over REST by a password of before")
        self._service.answered(response)


class ServiceWatch(Watch):
    """Watches a request about a topic after the login. See NothingAfterItsUser, NothingAfterItsRight and RightsHold.

    error_code: returns that of the topic, or of its partition, in a response. shows: returns whether a response shows
    something of the topic; None if the request changes something instead.
    """

    def __init__(
        self,
        known: Known,
        right: Right,
        error_code: Callable[[Any], int],
        shows: Callable[[Any], bool] | None = None,
    ) -> None:
        self._known = known
        self.right = right
        self._error_code = error_code
        self._shows = shows
        self._acls_before: Acls | None = None
        self.answered_by: BrokerNode | None = None
        """The process that has answered."""

    def arrived(self) -> None:
        self._acls_before = self._known.acls

    def answered(self, response: Any) -> None:
        known, right, now = self._known, self.right, self._known.acls
        self.answered_by = known.broker.node
        if not known.is_current:
            raise InvariantBroken("NothingAfterItsUser", f"{known} is served although the user has changed")
        is_refused, is_same = self._error_code(response) == _TOPIC_REFUSED, now is self._acls_before
        if is_refused and is_same and right.is_allowed(now):
            raise InvariantBroken("RightsHold", f"{known} is refused to {right}")
        if self._shows is None:
            is_served, in_force = not is_refused and is_same, [now]
        else:
            is_served, in_force = self._shows(response), [now, *known.replaced_acls]
        if is_served and not any(map(right.is_allowed, in_force)):
            raise InvariantBroken("NothingAfterItsRight", f"{known} is served to {right}")


def _problem_code(answer: Any) -> int:
    return _TOPIC_REFUSED if answer.status == _FORBIDDEN else 0


def _shows(answer: Any, shows: Callable[[Any], bool]) -> bool:
    return answer.status < _UNAUTHORIZED and shows(answer.document)
