"""Decisions by random ACLs are those of Kafka's own authorizer."""

from random import Random
from typing import Any

import pytest

from conveyor.kernel.access.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.acl_rules import AclRules
from conveyor.kernel.access.caller import PLAINTEXT, Caller, Principal, PrincipalType
from tests.clients.toolchains import java_class

CASES, QUESTIONS, MOST_ACLS = 1_000, 25, 8
USERS = ("alice", "bob", "root")
HOSTS = ("192.0.2.1", "192.0.2.2")
NAMES = ("a", "aa", "aab", "ab", "b", "aabc")
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
IMPLYING = (AclOperation.READ, AclOperation.WRITE, AclOperation.ALTER, AclOperation.ALTER_CONFIGS)
IMPLIED = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)

Question = tuple[str, str, AclOperation, ResourceType, str | None]


def random_acl(random: Random) -> Acl:
    return Acl(
        random.choice(TYPES),
        random.choice(("*", *NAMES)),
        random.choice(tuple(PatternType)),
        random.choice(("User:*", "User:alice", "User:bob")),
        random.choice(("*", *HOSTS)),
        random.choice((AclOperation.ALL, *IMPLYING, *IMPLIED)),
        random.choice(tuple(Permission)),
    )


def random_question(random: Random) -> Question:
    """About any resource, Kafka's authorizer takes an operation for implied only if `*` allows the other one."""
    name = random.choice((None, "*", *NAMES))
    operation = random.choice(IMPLYING if name is None else (*IMPLYING, *IMPLIED))
    return random.choice(USERS), random.choice(HOSTS), operation, random.choice(TYPES), name


def as_line(acls: list[Acl], questions: list[Question], *, allows_if_none: bool) -> dict[str, Any]:
    shown = [
        (
            acl.resource_type.number, acl.name, acl.pattern.number, acl.principal, acl.host, acl.operation.number,
            acl.permission.number,
        )
        for acl in acls
    ]  # fmt: skip
    asked = [(user, host, operation.number, kind.number, name) for user, host, operation, kind, name in questions]
    return {"acls": shown, "super_users": "User:root", "allows_if_none": allows_if_none, "questions": asked}


def decided(rules: AclRules, question: Question) -> bool:
    user, host, operation, resource_type, name = question
    caller = Caller(Principal(PrincipalType.USER, user), host, PLAINTEXT, 1)
    if name is None:
        return rules.decide_any(caller, operation, resource_type).is_allowed
    return rules.decide(caller, operation, resource_type, name).is_allowed


@pytest.mark.parametrize("allows_if_none", [False, True])
def test_decisions_are_those_of_kafkas_authorizer(allows_if_none: bool) -> None:
    random = Random(7)
    cases = [
        (
            list(dict.fromkeys(random_acl(random) for _ in range(random.randint(0, MOST_ACLS)))),
            [random_question(random) for _ in range(QUESTIONS)],
        )
        for _ in range(CASES)
    ]
    lines = [as_line(acls, questions, allows_if_none=allows_if_none) for acls, questions in cases]
    answers = java_class("Authorizer").run(given=lines)
    outcomes = set()
    for (acls, questions), answer in zip(cases, answers, strict=True):
        rules = AclRules(acls, ["User:root"], allows_if_none=allows_if_none)
        for question, expected in zip(questions, answer["decisions"], strict=True):
            assert decided(rules, question) is expected, (question, list(map(str, acls)))
            outcomes.add((question[4] is None, expected))
    assert len(outcomes) == 4
