"""The rights of a push's owner, and what the audit hears of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from conveyor.broker.queues.pushing.push_rights import PushRights
from conveyor.kernel.access.acl import AclOperation, ResourceType
from conveyor.kernel.access.caller import Caller, Principal, PrincipalType
from conveyor.kernel.access.scram import ScramMechanism
from conveyor.settings.tree import from_sources
from tests.unit.queues.push.test_push_target import SUBSCRIPTION, TARGET

TOPIC, GROUP = (ResourceType.TOPIC, "t"), (ResourceType.GROUP, "s")


class _Access:
    """An access control that permits reading some resources."""

    def __init__(self, *readable: tuple[ResourceType, str]) -> None:
        self._readable = readable
        self.noted: list[tuple[str, str, str]] = []

    def allows(self, caller: Caller, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        return operation is AclOperation.READ and (resource_type, name) in self._readable

    def permits(
        self, caller: Caller, request: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        self.noted.append((str(caller), request, name))
        return self.allows(caller, operation, resource_type, name)


def _rights(access: Any, *users: str) -> PushRights:
    image = SimpleNamespace(scram={(user, ScramMechanism.SHA_512): None for user in users})
    services: Any = SimpleNamespace(metadata=SimpleNamespace(image=image), settings=from_sources({}))
    return PushRights(services, access)


@pytest.mark.parametrize(
    ("readable", "may_read"), [((TOPIC, GROUP), True), ((TOPIC,), False), ((GROUP,), False), ((), False)]
)
def test_owner_must_read_the_subscription_and_its_topic(
    readable: tuple[tuple[ResourceType, str], ...], may_read: bool
) -> None:
    assert _rights(_Access(*readable), "alice").may_read(SUBSCRIPTION, TARGET.owner) is may_read


def test_owner_who_had_a_password_must_have_one_still() -> None:
    assert not _rights(_Access(TOPIC, GROUP), "bob").may_read(SUBSCRIPTION, TARGET.owner)


def test_audit_hears_of_leases_only() -> None:
    access = _Access(TOPIC, GROUP)
    rights = _rights(access, "alice")
    assert rights.may_read(SUBSCRIPTION, TARGET.owner)
    assert access.noted == []
    assert rights.may_read(SUBSCRIPTION, TARGET.owner, is_noted=True)
    assert access.noted == [("User:alice@192.0.2.1", "push", "s"), ("User:alice@192.0.2.1", "push", "t")]


@pytest.mark.parametrize(("user", "has_password"), [("alice", True), ("CN=bob", False)])
def test_caller_becomes_the_owner(user: str, has_password: bool) -> None:
    caller = Caller(Principal(PrincipalType.USER, user), "192.0.2.7", "HTTP", 9)
    owner = _rights(_Access(), "alice").owner(caller)
    assert (owner.user, owner.address, owner.has_password) == (user, "192.0.2.7", has_password)
    assert owner.caller.principal == caller.principal
