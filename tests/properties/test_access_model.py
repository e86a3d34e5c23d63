"""Who may do what, against a model: one loop over all ACLs, as Kafka's documentation describes the rules."""

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from conveyor.cluster.acls import AclFilter, PatternFilter, added, meant, removed
from conveyor.cluster.changes import fold
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.access.acl import OPERATIONS as SHOWN
from conveyor.kernel.access.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.acl_rules import AclRules
from conveyor.kernel.access.caller import PLAINTEXT, Caller, Principal, PrincipalType

USERS, HOSTS = ("u", "v"), ("h", "i")
NAMES = ("*", "a", "aa", "aab", "ab", "b")
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = tuple(operation for operation in AclOperation if operation is not AclOperation.ALL)

ACLS = st.builds(
    Acl,
    st.sampled_from(TYPES),
    st.sampled_from(NAMES),
    st.sampled_from(PatternType),
    st.sampled_from(["User:*", *(f"User:{user}" for user in USERS)]),
    st.sampled_from(["*", *HOSTS]),
    st.sampled_from(AclOperation),
    st.sampled_from(Permission),
)
MANY_ACLS = st.lists(ACLS, max_size=12)
CALLERS = st.builds(
    lambda user, host: Caller(Principal(PrincipalType.USER, user), host, PLAINTEXT, 1),
    st.sampled_from(USERS),
    st.sampled_from(HOSTS),
)
FILTERS = st.builds(
    AclFilter,
    st.none() | st.sampled_from(TYPES),
    st.none() | st.sampled_from(NAMES),
    st.sampled_from(PatternFilter),
    st.none() | st.sampled_from(["User:*", "User:u"]),
    st.none() | st.sampled_from(["*", "h"]),
    st.none() | st.sampled_from(AclOperation),
    st.none() | st.sampled_from(Permission),
)
IMPLIES = {
    AclOperation.READ: AclOperation.DESCRIBE,
    AclOperation.WRITE: AclOperation.DESCRIBE,
    AclOperation.DELETE: AclOperation.DESCRIBE,
    AclOperation.ALTER: AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}


def names(acl: Acl, resource_type: ResourceType, name: str) -> bool:
    if acl.resource_type is not resource_type:
        return False
    if acl.pattern is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in ("*", name)


def is_about(acl: Acl, caller: Caller) -> bool:
    return acl.principal in ("User:*", str(caller.principal)) and acl.host in ("*", caller.address)


def model(
    acls: Iterable[Acl],
    caller: Caller,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    *,
    default: bool,
) -> bool:
    """Look at each ACL, without an index, an order or a memory."""
    is_named = is_allowed = is_denied = False
    for acl in acls:
        if not names(acl, resource_type, name):
            continue
        is_named = True
        if not is_about(acl, caller):
            continue
        is_exact = acl.operation in (operation, AclOperation.ALL)
        if acl.permission is Permission.DENY:
            is_denied |= is_exact
        else:
            is_allowed |= is_exact or IMPLIES.get(acl.operation) is operation
    return default if not is_named else is_allowed and not is_denied


@given(MANY_ACLS, CALLERS, st.sampled_from(TYPES), st.booleans())
def test_decision_is_that_of_the_model(
    acls: list[Acl], caller: Caller, resource_type: ResourceType, default: bool
) -> None:
    rules = AclRules(acls, allows_if_none=default)
    for name in (*NAMES, "aabc", "c"):
        for operation in OPERATIONS:
            expected = model(acls, caller, operation, resource_type, name, default=default)
            decision = rules.decide(caller, operation, resource_type, name)
            assert decision.is_allowed is expected
            assert rules.decide(caller, operation, resource_type, name) is decision
            if isinstance(decision.rule, Acl):
                assert decision.rule in acls
                assert (decision.rule.permission is Permission.ALLOW) is expected
        assert rules.operations(caller, resource_type, name) == [
            operation
            for operation in SHOWN[resource_type]
            if model(acls, caller, operation, resource_type, name, default=default)
        ]


@given(MANY_ACLS, st.randoms(use_true_random=False), CALLERS, st.sampled_from(OPERATIONS), st.sampled_from(NAMES))
def test_order_and_repetition_of_acls_do_not_count(
    acls: list[Acl], random: object, caller: Caller, operation: AclOperation, name: str
) -> None:
    shuffled = [*acls, *acls[:3]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for resource_type in TYPES:
        decisions = [AclRules(order).decide(caller, operation, resource_type, name) for order in (acls, shuffled)]
        assert decisions[0].is_allowed is decisions[1].is_allowed


@given(MANY_ACLS, CALLERS, st.sampled_from(TYPES))
def test_right_on_some_resource_is_the_right_on_one_of_all(
    acls: list[Acl], caller: Caller, resource_type: ResourceType
) -> None:
    """WRITE is implied by nothing. One name behind each prefix, and one that only `*` means, stand for all others."""
    universe = {*NAMES, "zzz", *(f"{name}-z" for name in NAMES)}
    expected = any(model(acls, caller, AclOperation.WRITE, resource_type, name, default=False) for name in universe)
    assert AclRules(acls).decide_any(caller, AclOperation.WRITE, resource_type).is_allowed is expected


def image_of(acls: Sequence[Acl]) -> ClusterImage:
    return fold(ClusterImage(), added(ClusterImage(), acls), 1)


def model_means(chosen: AclFilter, acl: Acl) -> bool:
    """Kafka's ResourcePatternFilter and AccessControlEntryFilter, a field after the other."""
    for wanted, value in (
        (chosen.resource_type, acl.resource_type),
        (chosen.principal, acl.principal),
        (chosen.host, acl.host),
        (chosen.operation, acl.operation),
        (chosen.permission, acl.permission),
    ):
        if wanted is not None and wanted != value:
            return False
    is_prefix = acl.pattern is PatternType.PREFIXED
    if chosen.pattern is PatternFilter.LITERAL and is_prefix:
        return False
    if chosen.pattern is PatternFilter.PREFIXED and not is_prefix:
        return False
    if chosen.name is None or (chosen.pattern is not PatternFilter.MATCHING and chosen.name == acl.name):
        return True
    return chosen.pattern is PatternFilter.MATCHING and names(acl, acl.resource_type, chosen.name)


@given(MANY_ACLS, st.lists(FILTERS, max_size=4))
def test_removal_leaves_exactly_the_acls_that_no_filter_means(acls: list[Acl], filters: list[AclFilter]) -> None:
    """Those of the same resource as well (CVE-2024-27309)."""
    image = image_of(acls)
    found = meant(image.acls, filters)
    assert [set(of_filter) for of_filter in found] == [
        {acl for acl in acls if model_means(chosen, acl)} for chosen in filters
    ]
    left = fold(image, removed(found), 2)
    assert set(left.acls) == {acl for acl in acls if not any(model_means(chosen, acl) for chosen in filters)}


@given(st.lists(ACLS, min_size=1, max_size=12, unique=True), st.data(), CALLERS)
def test_removal_of_one_acl_changes_no_decision_but_its_own(
    acls: list[Acl], data: st.DataObject, caller: Caller
) -> None:
    gone = data.draw(st.sampled_from(acls))
    others = [acl for acl in acls if acl != gone]
    rules = AclRules(fold(image_of(acls), removed([[gone]]), 2).acls)
    for resource_type in TYPES:
        for name in NAMES:
            for operation in OPERATIONS:
                expected = model(others, caller, operation, resource_type, name, default=False)
                assert rules.decide(caller, operation, resource_type, name).is_allowed is expected


@given(MANY_ACLS, MANY_ACLS)
def test_additions_are_a_union(first: list[Acl], second: list[Acl]) -> None:
    image = image_of(first)
    assert set(fold(image, added(image, second), 2).acls) == {*first, *second}
    assert not added(image, first)
