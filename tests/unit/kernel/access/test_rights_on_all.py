"""Whether a caller may do something with all resources of a type."""

from collections.abc import Iterable

import pytest

from conveyor.kernel.access.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.acl_rules import AclRules
from conveyor.kernel.access.caller import HTTP, Caller, Principal, PrincipalType

ALICE = Caller(Principal(PrincipalType.USER, "alice"), "192.0.2.1", HTTP, 1)


def acl(
    operation: AclOperation = AclOperation.DESCRIBE,
    name: str = "*",
    permission: Permission = Permission.ALLOW,
    *,
    principal: str = "User:alice",
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    resource_type: ResourceType = ResourceType.TOPIC,
) -> Acl:
    return Acl(resource_type, name, pattern, principal, host, operation, permission)


def allows(*acls: Acl, super_users: Iterable[str] = (), allows_if_none: bool = False) -> bool:
    rules = AclRules(acls, super_users, allows_if_none=allows_if_none)
    first, second = (rules.decide_all(ALICE, AclOperation.DESCRIBE, ResourceType.TOPIC).is_allowed for _ in range(2))
    assert first == second, "decisions are remembered"
    return first


@pytest.mark.parametrize(
    "allowing",
    [
        acl(),
        acl(AclOperation.ALL),
        acl(AclOperation.READ),
        acl(principal="User:*"),
        acl(host="192.0.2.1"),
    ],
    ids=str,
)
def test_an_acl_for_all_resources_allows_it(allowing: Acl) -> None:
    assert allows(allowing)
    assert allows(allowing, acl(AclOperation.READ, "t", Permission.DENY))
    assert allows(allowing, acl(AclOperation.ALL, "t", Permission.DENY, principal="User:bob"))


@pytest.mark.parametrize(
    "other",
    [
        acl(name="t"),
        acl(name="*", pattern=PatternType.PREFIXED),
        acl(name="t", pattern=PatternType.PREFIXED),
        acl(principal="User:bob"),
        acl(host="192.0.2.2"),
        acl(resource_type=ResourceType.GROUP),
        acl(AclOperation.CREATE),
    ],
    ids=str,
)
def test_any_other_acl_does_not(other: Acl) -> None:
    assert not allows(other)


@pytest.mark.parametrize("operation", [AclOperation.DESCRIBE, AclOperation.ALL])
@pytest.mark.parametrize("pattern", PatternType)
def test_an_acl_that_denies_it_on_one_resource_wins(operation: AclOperation, pattern: PatternType) -> None:
    denying = acl(operation, "t", Permission.DENY, pattern=pattern)
    assert not allows(acl(), denying)
    assert not allows(denying, acl())
    assert allows(denying, super_users=["User:alice"])


def test_long_names_are_not_remembered() -> None:
    rules = AclRules([acl(name="t", pattern=PatternType.PREFIXED)])
    for size in (512, 513):
        assert rules.decide(ALICE, AclOperation.DESCRIBE, ResourceType.TOPIC, "t" * size).is_allowed
    assert [len(str(key[-1])) for key in rules._decided] == [512]


def test_without_acls_the_setting_decides() -> None:
    assert not allows()
    assert allows(allows_if_none=True)
    assert not allows(acl(name="t"), allows_if_none=True)
    assert allows(acl(resource_type=ResourceType.GROUP), allows_if_none=True)


@pytest.mark.parametrize(
    ("acls", "is_allowed"),
    [
        ([acl(name="ord", pattern=PatternType.PREFIXED)], True),
        ([acl(name="orders-", pattern=PatternType.PREFIXED)], True),
        ([acl()], True),
        ([acl(name="orders-eu", pattern=PatternType.PREFIXED)], False),
        ([acl(name="orders-")], False),
        ([acl(name="x", pattern=PatternType.PREFIXED)], False),
        ([acl(), acl(name="orders-eu", permission=Permission.DENY)], False),
        ([acl(), acl(name="orders-eu", permission=Permission.DENY, pattern=PatternType.PREFIXED)], False),
        ([acl(), acl(name="o", permission=Permission.DENY, pattern=PatternType.PREFIXED)], False),
        ([acl(), acl(permission=Permission.DENY)], False),
        ([acl(), acl(name="orders", permission=Permission.DENY)], True),
        ([acl(), acl(name="x", permission=Permission.DENY, pattern=PatternType.PREFIXED)], True),
    ],
)
def test_right_on_all_of_a_prefix_is_that_on_each_name_that_begins_with_it(acls: list[Acl], is_allowed: bool) -> None:
    for order in (acls, acls[::-1]):
        rules = AclRules(order)
        for _ in range(2):
            decision = rules.decide_all(ALICE, AclOperation.DESCRIBE, ResourceType.TOPIC, "orders-")
            assert decision.is_allowed is is_allowed


def test_without_acls_on_names_of_a_prefix_the_setting_decides() -> None:
    rules = AclRules([acl(name="x")], allows_if_none=True)
    prefixes = ("orders-", "x", "xx", "")
    decisions = [rules.decide_all(ALICE, AclOperation.READ, ResourceType.TOPIC, prefix) for prefix in prefixes]
    assert [decision.is_allowed for decision in decisions] == [True, False, True, False]
