"""Kafka's rules, one by one. Source: StandardAuthorizerTest and AuthorizerTest."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from typing import Any

import pytest

from conveyor.kernel.access import acl_rules
from conveyor.kernel.access.acl import OPERATIONS, Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.acl_rules import NOT_ALLOWED, NOT_NAMED, SUPER_USER, AclRules
from conveyor.kernel.access.caller import PLAINTEXT, Caller, Principal, PrincipalType

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
PREFIXED = PatternType.PREFIXED
HERE, ELSEWHERE = "192.0.2.1", "192.0.2.9"


def caller(user: str = "alice", host: str = HERE) -> Caller:
    return Caller(Principal(PrincipalType.USER, user), host, PLAINTEXT, 1)


def allow(
    operation: AclOperation = READ,
    name: str = "orders",
    resource_type: ResourceType = TOPIC,
    *,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(resource_type, name, pattern, principal, host, operation, permission)


def deny(operation: AclOperation = READ, name: str = "orders", **more: Any) -> Acl:
    return allow(operation, name, permission=Permission.DENY, **more)


def may(
    rules: AclRules | Sequence[Acl],
    operation: AclOperation = READ,
    name: str = "orders",
    resource_type: ResourceType = TOPIC,
    who: Caller | None = None,
) -> bool:
    rules = rules if isinstance(rules, AclRules) else AclRules(rules)
    return rules.decide(who or caller(), operation, resource_type, name).is_allowed


def test_nothing_is_allowed_without_an_acl() -> None:
    assert AclRules([]).decide(caller(), READ, TOPIC, "orders") == NOT_ALLOWED


def test_acl_allows_its_operation_on_its_resource_to_its_user() -> None:
    acl = allow()
    assert AclRules([acl]).decide(caller(), READ, TOPIC, "orders") == (True, acl)
    assert not may([acl], WRITE)
    assert not may([acl], name="order")
    assert not may([acl], name="orders2")
    assert not may([acl], resource_type=GROUP)
    assert not may([acl], who=caller("bob"))
    assert not may([acl], who=caller("Alice"))


def test_user_of_another_type_is_another_principal() -> None:
    assert not may([allow()], who=Caller(Principal(PrincipalType.BROKER, "alice"), HERE, PLAINTEXT, 1))


def test_all_is_every_operation_of_the_resource() -> None:
    rules = AclRules([allow(AclOperation.ALL)])
    assert all(may(rules, operation) for operation in OPERATIONS[TOPIC])
    assert not may(rules, READ, resource_type=GROUP)
    denied = AclRules([allow(AclOperation.ALL), deny(AclOperation.ALL)])
    assert not any(may(denied, operation) for operation in OPERATIONS[TOPIC])


@pytest.mark.parametrize("super_user", ["User:alice", "User:CN=alice,O=Example"])
def test_super_user_may_do_everything(super_user: str) -> None:
    rules = AclRules([deny(AclOperation.ALL, "*", principal="User:*")], [super_user])
    who = caller(super_user.removeprefix("User:"))
    assert rules.decide(who, READ, TOPIC, "orders") == rules.decide_any(who, WRITE, TOPIC) == SUPER_USER
    assert not may(rules, who=caller("bob"))


def test_super_user_is_named_with_the_type() -> None:
    assert not may(AclRules([], ["alice"]))


@pytest.mark.parametrize(
    "denying",
    [
        deny(),
        deny(AclOperation.ALL),
        deny(principal="User:*"),
        deny(host=HERE),
        deny(name="*"),
        deny(name="or", pattern=PREFIXED),
        deny(name="orders", pattern=PREFIXED),
    ],
    ids=str,
)
def test_denial_wins_whatever_the_order(denying: Acl) -> None:
    allowing = [allow(), allow(AclOperation.ALL, "*", principal="User:*"), allow(name="orders", pattern=PREFIXED)]
    for acls in permutations([denying, *allowing]):
        assert AclRules(acls).decide(caller(), READ, TOPIC, "orders") == (False, denying)


@pytest.mark.parametrize(
    "denying",
    [
        deny(WRITE),
        deny(principal="User:bob"),
        deny(host=ELSEWHERE),
        deny(name="orders2"),
        deny(name="orders2", pattern=PREFIXED),
        deny(resource_type=GROUP),
    ],
    ids=str,
)
def test_denial_of_something_else_does_not_count(denying: Acl) -> None:
    assert may([denying, allow()])
    assert may([allow(), denying])


def test_prefix_names_what_begins_with_it() -> None:
    rules = AclRules([allow(name="ord", pattern=PREFIXED), allow(name="orders-eu-", pattern=PREFIXED)])
    assert [may(rules, name=name) for name in ("ord", "orders", "order", "orders-eu-1")] == [True] * 4
    assert not any(may(rules, name=name) for name in ("or", "Orders", "xorders", ""))


def test_star_is_any_name_literally_and_no_wildcard_within_one() -> None:
    assert may([allow(name="*")])
    assert not may([allow(name="ord*")])
    assert may([allow(name="ord*")], name="ord*")
    assert not may([allow(name="*", pattern=PREFIXED)])
    assert may([allow(name="*", pattern=PREFIXED)], name="*orders")


def test_host_is_an_address_or_any() -> None:
    acl = allow(host=HERE)
    assert may([acl])
    assert not may([acl], who=caller(host=ELSEWHERE))
    assert not may([allow(host="192.0.2.0/24")])
    assert not may([allow(host="192.0.2.")])
    assert not may([allow(), deny(host=ELSEWHERE)], who=caller(host=ELSEWHERE))


IMPLIED = [
    (DESCRIBE, {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER, DESCRIBE, AclOperation.ALL}),
    (
        AclOperation.DESCRIBE_CONFIGS,
        {AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALL},
    ),
]


@pytest.mark.parametrize(("implied", "by"), IMPLIED)
def test_operations_imply_that_their_resource_is_described(implied: AclOperation, by: set[AclOperation]) -> None:
    assert {operation for operation in AclOperation if may([allow(operation)], implied)} == by


@pytest.mark.parametrize("asked", AclOperation)
def test_no_other_operation_is_implied(asked: AclOperation) -> None:
    if asked not in dict(IMPLIED):
        by = {operation for operation in AclOperation if may([allow(operation)], asked)}
        assert by == {asked, AclOperation.ALL}


def test_denial_implies_nothing() -> None:
    for operation in (READ, WRITE, AclOperation.DELETE, AclOperation.ALTER):
        assert may([allow(DESCRIBE), deny(operation)], DESCRIBE)
        assert not may([allow(operation), deny(DESCRIBE)], DESCRIBE)
        assert may([allow(operation), deny(DESCRIBE)], operation)


@pytest.mark.parametrize(
    "acl",
    [
        allow(principal="User:bob"),
        deny(WRITE, principal="User:bob"),
        allow(host=ELSEWHERE),
        allow(name="*", principal="User:bob"),
        allow(name="o", pattern=PREFIXED, principal="User:bob"),
    ],
    ids=str,
)
def test_default_counts_only_if_no_acl_names_the_resource_for_anybody(acl: Acl) -> None:
    assert AclRules([acl], allows_if_none=True).decide(caller(), READ, TOPIC, "orders") == NOT_ALLOWED
    assert AclRules([], allows_if_none=True).decide(caller(), READ, TOPIC, "orders") == NOT_NAMED
    assert may(AclRules([acl], allows_if_none=True), resource_type=GROUP)
    assert may(AclRules([acl], allows_if_none=True), name="things") == (acl.name != "*")


@pytest.mark.parametrize(
    ("acls", "is_allowed"),
    [
        ([], False),
        ([allow(WRITE)], True),
        ([allow(WRITE, name="*")], True),
        ([allow(WRITE, pattern=PREFIXED)], True),
        ([allow(AclOperation.ALL)], True),
        ([allow(READ)], False),
        ([allow(WRITE, resource_type=GROUP)], False),
        ([allow(WRITE, principal="User:bob")], False),
        ([allow(WRITE, principal="User:*")], True),
        ([allow(WRITE, host=ELSEWHERE)], False),
        ([allow(WRITE), deny(WRITE, name="*")], False),
        ([allow(WRITE), deny(AclOperation.ALL, name="*")], False),
        ([allow(WRITE), deny(WRITE, name="*", principal="User:bob")], True),
        ([allow(WRITE), deny(WRITE)], False),
        ([allow(WRITE), deny(WRITE, name="order")], True),
        ([allow(WRITE), deny(WRITE, name="order", pattern=PREFIXED)], False),
        ([allow(WRITE), deny(WRITE, pattern=PREFIXED)], False),
        ([allow(WRITE), deny(WRITE, name="orders-", pattern=PREFIXED)], True),
        ([allow(WRITE, pattern=PREFIXED), deny(WRITE)], True),
        ([allow(WRITE, pattern=PREFIXED), deny(WRITE, pattern=PREFIXED)], False),
        ([allow(WRITE, pattern=PREFIXED), deny(WRITE, name="o", pattern=PREFIXED)], False),
        ([allow(WRITE, pattern=PREFIXED), deny(WRITE, name="orders-", pattern=PREFIXED)], True),
        ([allow(WRITE, name="*"), deny(WRITE), deny(WRITE, name="o", pattern=PREFIXED)], True),
        ([deny(WRITE), allow(WRITE), allow(WRITE, name="things")], True),
    ],
)
def test_right_on_some_resource_is_left_unless_denials_cover_all_that_is_allowed(
    acls: list[Acl], is_allowed: bool
) -> None:
    for order in permutations(acls):
        assert AclRules(order).decide_any(caller(), WRITE, TOPIC).is_allowed is is_allowed


def test_some_resource_may_be_one_that_no_acl_names() -> None:
    assert AclRules([deny(WRITE)], allows_if_none=True).decide_any(caller(), WRITE, TOPIC) == NOT_NAMED
    everything = deny(WRITE, name="*", principal="User:*")
    assert AclRules([everything], allows_if_none=True).decide_any(caller(), WRITE, TOPIC) == (False, everything)


def test_decision_is_remembered_for_each_caller_host_operation_and_resource() -> None:
    rules = AclRules([allow(host=HERE), allow(READ, "orders", GROUP)])
    for _ in range(2):
        assert may(rules)
        assert not may(rules, who=caller(host=ELSEWHERE))
        assert not may(rules, who=caller("bob"))
        assert not may(rules, WRITE)
        assert may(rules, resource_type=GROUP)
        assert not may(rules, name="order")


def test_decisions_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose the names, so memory must not grow with them."""
    monkeypatch.setattr(acl_rules, "_MAX_REMEMBERED", 10)
    rules = AclRules([allow()])
    for number in range(100):
        assert not may(rules, name=f"unknown-{number}")
        assert may(rules)
        assert len(rules._decided) <= 10


def calls_in(work: Callable[[], object]) -> int:
    """Return the number of Python's and C's functions that are called."""
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_decision_does_not_grow_with_the_acls_of_others() -> None:
    everywhere = [allow(name="*", principal=f"User:u{number}") for number in range(5_000)]
    elsewhere = [deny(name="*", host=f"192.0.2.{number}") for number in range(5_000)]
    rules, who = AclRules([*everywhere, *elsewhere, allow(principal="User:bob", name="*")]), caller("bob")
    assert calls_in(lambda: rules.decide(who, READ, TOPIC, "orders")) < 30
    rules.decide_any(caller("somebody"), READ, TOPIC)  # The first one sorts the ACLs by type.
    assert calls_in(lambda: rules.decide_any(who, READ, TOPIC)) < 40
    assert calls_in(lambda: rules.decide_all(who, READ, TOPIC)) < 40
    assert calls_in(lambda: rules.operations(who, TOPIC, "orders")) < 80


def test_decision_does_not_grow_with_the_acls_of_other_resources() -> None:
    others = [allow(name=f"topic-{number}", principal=f"User:u{number}") for number in range(5_000)]
    others += [allow(name=f"prefix-{number:05}-", pattern=PREFIXED) for number in range(5_000)]
    rules, who = AclRules([*others, allow()]), caller("bob")
    assert calls_in(lambda: rules.decide(who, READ, TOPIC, "orders")) < 30
    assert calls_in(lambda: rules.decide(who, READ, TOPIC, "prefix-00001-x")) < 30


def test_remembered_decision_takes_few_calls() -> None:
    rules, who = AclRules([allow()]), caller()
    rules.decide(who, READ, TOPIC, "orders")
    assert calls_in(lambda: rules.decide(who, READ, TOPIC, "orders")) <= 4
    for decide in (rules.decide_any, rules.decide_all):
        decide(who, READ, TOPIC)
        assert calls_in(partial(decide, who, READ, TOPIC)) <= 4


def test_acl_is_shown_in_a_line() -> None:
    assert str(allow()) == "Allow User:alice from * to Read Topic orders"
    assert str(deny(WRITE, "ord", pattern=PREFIXED)) == "Deny User:alice from * to Write Topic ord*"
