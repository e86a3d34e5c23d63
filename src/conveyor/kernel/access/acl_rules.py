"""Decides who may do what, by a set of ACLs, exactly as Kafka's StandardAuthorizer does.

Super users may do everything. Then any ACL that denies wins over all that allow, in whatever order they were made. ACLs
count for a user by name or by `User:*`, for an address exactly or by `*`, and for a resource by name, by a prefix of it
or by `*`. One that allows Read, Write, Delete or Alter allows Describe, and AlterConfigs allows DescribeConfigs; one
that denies denies nothing else. What no ACL allows is denied.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from conveyor.kernel.access.acl import (
    ANY,
    ANY_USER,
    OPERATIONS,
    Acl,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from conveyor.kernel.access.caller import Caller

_MAX_REMEMBERED = 10_000
"""Decisions."""
_MAX_REMEMBERED_CHARACTERS = 512
"""Of the name in a decision. Clients choose it, up to the size of a request."""

_ALLOW_TOO = {
    AclOperation.DESCRIBE: frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}


_Pattern = tuple[ResourceType, PatternType, str]
_Subject = tuple[str, str]
"""The principal and the host of an ACL."""


class AccessDecision(NamedTuple):
    """The decision whether something is allowed, and the ACL or other reason that made it."""

    is_allowed: bool
    rule: Acl | str


SUPER_USER = AccessDecision(True, "a super user (access.super_users)")
NOT_NAMED = AccessDecision(True, "no ACL names the resource (access.allow_if_no_acl)")
NOT_ALLOWED = AccessDecision(False, "no ACL allows it")


class AclRules:
    """See the module's docstring.

    super_users: as `User:alice`. allows_if_none: whether anybody may do anything with a resource that no ACL names.
    """

    def __init__(self, acls: Iterable[Acl], super_users: Iterable[str] = (), *, allows_if_none: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allows_if_none = allows_if_none
        self._by_name: dict[tuple[_Pattern, _Subject], list[Acl]] = defaultdict(list)
        for acl in acls:
            self._by_name[(acl.resource_type, acl.pattern, acl.name), (acl.principal, acl.host)].append(acl)
        self._patterns = {pattern for pattern, _ in self._by_name}
        self._names = sorted((kind.number, name) for kind, _, name in self._patterns) if allows_if_none else []
        prefixes = [(kind, len(name)) for kind, pattern, name in self._patterns if pattern is PatternType.PREFIXED]
        self._prefix_sizes = {
            resource_type: sorted({size for kind, size in prefixes if kind is resource_type})
            for resource_type in ResourceType
        }
        self._by_type: dict[tuple[ResourceType, _Subject], list[Acl]] | None = None
        """Made when the first decision needs it."""
        self._decided: dict[tuple[object, ...], AccessDecision] = {}

    def decide(self, caller: Caller, operation: AclOperation, resource_type: ResourceType, name: str) -> AccessDecision:
        """Return whether a caller may do something with a resource. It remembers its decisions."""
        key = caller.principal, caller.address, operation, resource_type, name
        decision = self._decided.get(key)
        if decision is None:
            decision = self._decide(_who(caller), operation, resource_type, name)
            if len(name) <= _MAX_REMEMBERED_CHARACTERS:
                self._remember(key, decision)
        return decision

    def decide_all(
        self, caller: Caller, operation: AclOperation, resource_type: ResourceType, prefix: str = ""
    ) -> AccessDecision:
        """Return whether a caller may do something with every resource of a type, whatever follows the prefix in its
        name. To such a caller it may be said that there is no resource. It remembers its decisions.
        """
        key = caller.principal, caller.address, operation, resource_type, None, prefix
        decision = self._decided.get(key)
        if decision is None:
            decision = self._decide_all(_who(caller), operation, resource_type, prefix)
            if len(prefix) <= _MAX_REMEMBERED_CHARACTERS:
                self._remember(key, decision)
        return decision

    def decide_any(self, caller: Caller, operation: AclOperation, resource_type: ResourceType) -> AccessDecision:
        """Return whether there may be a resource of a type with which the caller may do something. Unlike `decide`,
        other operations imply nothing. It remembers its decisions. Source: Authorizer.authorizeByResourceType.
        """
        key = caller.principal, caller.address, operation, resource_type, None
        decision = self._decided.get(key)
        if decision is None:
            decision = self._decide_any(_who(caller), operation, resource_type)
            self._remember(key, decision)
        return decision

    def operations(self, caller: Caller, resource_type: ResourceType, name: str) -> list[AclOperation]:
        """Return what a caller may do with a resource, of the operations that there are on it."""
        who, operations = _who(caller), OPERATIONS[resource_type]
        meant = list(self._meant(who, resource_type, name))
        return [
            operation for operation in operations if self._by(meant, who, operation, resource_type, name).is_allowed
        ]

    def _decide(self, who: "_Who", operation: AclOperation, resource_type: ResourceType, name: str) -> AccessDecision:
        return self._by(self._meant(who, resource_type, name), who, operation, resource_type, name)

    def _by(
        self, meant: Iterable[Acl], who: "_Who", operation: AclOperation, resource_type: ResourceType, name: str
    ) -> AccessDecision:
        """Return the decision. meant: the ACLs for this caller that name the resource."""
        if who.principal in self._super_users:
            return SUPER_USER
        allowed = NOT_ALLOWED
        implying = _ALLOW_TOO.get(operation, frozenset())
        for acl in meant:
            if acl.permission is Permission.DENY:
                if _is_of(acl, operation):
                    return AccessDecision(False, acl)
            elif not allowed.is_allowed and (_is_of(acl, operation) or acl.operation in implying):
                allowed = AccessDecision(True, acl)
        if self._allows_if_none and not allowed.is_allowed and not any(self._naming(resource_type, name)):
            return NOT_NAMED
        return allowed

    def _decide_all(
        self, who: "_Who", operation: AclOperation, resource_type: ResourceType, prefix: str
    ) -> AccessDecision:
        if who.principal in self._super_users:
            return SUPER_USER
        if self._allows_if_none and not self._is_any_named(resource_type, prefix):
            return NOT_NAMED
        allowed = NOT_ALLOWED
        operations = {operation, AclOperation.ALL, *_ALLOW_TOO.get(operation, ())}
        for acl in self._of_type(who, resource_type):
            names_all = _names_all(acl, prefix)
            if acl.permission is Permission.DENY:
                if _is_of(acl, operation) and (names_all or acl.name.startswith(prefix)):
                    return AccessDecision(False, acl)
            elif names_all and acl.operation in operations:
                allowed = AccessDecision(True, acl)
        return allowed

    def _decide_any(self, who: "_Who", operation: AclOperation, resource_type: ResourceType) -> AccessDecision:
        if who.principal in self._super_users:
            return SUPER_USER
        if self._allows_if_none and (resource_type, PatternType.LITERAL, ANY) not in self._patterns:
            return NOT_NAMED
        counting = [acl for acl in self._of_type(who, resource_type) if _is_of(acl, operation)]
        denying = {(acl.pattern, acl.name): acl for acl in counting if acl.permission is Permission.DENY}
        everything = denying.get((PatternType.LITERAL, ANY))
        if everything is not None:
            return AccessDecision(False, everything)
        allowing = (acl for acl in counting if acl.permission is Permission.ALLOW)
        left = (acl for acl in allowing if not any(pattern in denying for pattern in _patterns_over(acl)))
        found = next(left, None)
        return NOT_ALLOWED if found is None else AccessDecision(True, found)

    def _remember(self, key: tuple[object, ...], decision: AccessDecision) -> None:
        if len(self._decided) >= _MAX_REMEMBERED:
            self._decided.clear()
        self._decided[key] = decision

    def _meant(self, who: "_Who", resource_type: ResourceType, name: str) -> Iterator[Acl]:
        """Yield the ACLs for a caller that name a resource. The others, of which there may be many, cost nothing."""
        for pattern in self._naming(resource_type, name):
            for subject in who.subjects:
                yield from self._by_name.get((pattern, subject), ())

    def _of_type(self, who: "_Who", resource_type: ResourceType) -> Iterator[Acl]:
        """Yield the ACLs for a caller that name resources of a type."""
        if self._by_type is None:
            self._by_type = defaultdict(list)
            for ((of_type, _, _), subject), acls in self._by_name.items():
                self._by_type[of_type, subject] += acls
        for subject in who.subjects:
            yield from self._by_type.get((resource_type, subject), ())

    def _naming(self, resource_type: ResourceType, name: str) -> "Iterator[_Pattern]":
        """Yield the patterns of ACLs that name a resource."""
        literal = resource_type, PatternType.LITERAL, name
        if literal in self._patterns:
            yield literal
        everything = resource_type, PatternType.LITERAL, ANY
        if name != ANY and everything in self._patterns:
            yield everything
        for size in self._prefix_sizes[resource_type]:
            if size > len(name):
                return
            prefixed = resource_type, PatternType.PREFIXED, name[:size]
            if prefixed in self._patterns:
                yield prefixed

    def _is_any_named(self, resource_type: ResourceType, prefix: str) -> bool:
        """Return whether an ACL names any resource whose name begins with a prefix."""
        place = bisect_left(self._names, (resource_type.number, prefix))
        following = self._names[place : place + 1]
        begins = any(number == resource_type.number and name.startswith(prefix) for number, name in following)
        return begins or any(self._naming(resource_type, prefix))


class _Who(NamedTuple):
    """A caller as ACLs have it. subjects: the principals and hosts of those that are for the caller."""

    principal: str
    subjects: "tuple[_Subject, ...]"


def _who(caller: Caller) -> _Who:
    principal, host = str(caller.principal), caller.address
    return _Who(principal, ((principal, host), (principal, ANY), (ANY_USER, host), (ANY_USER, ANY)))


def _is_of(acl: Acl, operation: AclOperation) -> bool:
    return acl.operation in (operation, AclOperation.ALL)


def _names_all(acl: Acl, prefix: str) -> bool:
    """Return whether an ACL names all resources whose names begin with a prefix."""
    if acl.pattern is PatternType.PREFIXED:
        return prefix.startswith(acl.name)
    return acl.name == ANY


def _patterns_over(acl: Acl) -> Iterator[tuple[PatternType, str]]:
    """Yield the patterns that name everything that an ACL names, except any: its own, and each prefix of its name. A
    prefix names nothing that `*` does not, but is not over it.
    """
    yield acl.pattern, acl.name
    if (acl.pattern, acl.name) != (PatternType.LITERAL, ANY):
        yield from ((PatternType.PREFIXED, acl.name[:size]) for size in range(1, len(acl.name) + 1))
