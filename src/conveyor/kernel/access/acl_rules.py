"""Decides who may do what, by a set of ACLs, exactly as Kafka's StandardAuthorizer does.

Super users may do everything. Then any ACL that denies wins over all that allow, in whatever order they were made. ACLs
count for a user by name or by `User:*`, for an address exactly or by `*`, and for a resource by name, by a prefix of it
or by `*`. One that allows Read, Write, Delete or Alter allows Describe, and AlterConfigs allows DescribeConfigs; one
that denies denies nothing else. What no ACL allows is denied.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from conveyor.kernel.access.acl import ANY, ANY_USER, Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.caller import Caller

_MAX_REMEMBERED = 10_000
"""Decisions."""
_MAX_REMEMBERED_CHARACTERS = 512
"""Of the name in a decision. Clients choose it, up to the size of a request."""

_ALLOW_TOO = {
    AclOperation.DESCRIBE: frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}


class AccessDecision(NamedTuple):
    """Whether something is allowed, and by which ACL or by what else."""

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
        self._by_name: dict[tuple[ResourceType, PatternType, str], list[Acl]] = defaultdict(list)
        sizes: dict[ResourceType, set[int]] = defaultdict(set)
        self._of_type: dict[ResourceType, list[Acl]] = defaultdict(list)
        for acl in acls:
            self._by_name[acl.resource_type, acl.pattern, acl.name].append(acl)
            self._of_type[acl.resource_type].append(acl)
            if acl.pattern is PatternType.PREFIXED:
                sizes[acl.resource_type].add(len(acl.name))
        self._prefix_sizes = {resource_type: sorted(found) for resource_type, found in sizes.items()}
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

    def _decide(self, who: "_Who", operation: AclOperation, resource_type: ResourceType, name: str) -> AccessDecision:
        if who.principal in self._super_users:
            return SUPER_USER
        naming = list(self._naming(resource_type, name))
        if not naming:
            return NOT_NAMED if self._allows_if_none else NOT_ALLOWED
        allowed = NOT_ALLOWED
        implying = _ALLOW_TOO.get(operation, frozenset())
        for acl in naming:
            if not who.is_meant(acl):
                continue
            if acl.permission is Permission.DENY:
                if _is_of(acl, operation):
                    return AccessDecision(False, acl)
            elif not allowed.is_allowed and (_is_of(acl, operation) or acl.operation in implying):
                allowed = AccessDecision(True, acl)
        return allowed

    def _decide_all(
        self, who: "_Who", operation: AclOperation, resource_type: ResourceType, prefix: str
    ) -> AccessDecision:
        if who.principal in self._super_users:
            return SUPER_USER
        acls = [
            acl
            for acl in self._of_type.get(resource_type, ())
            if _names_all(acl, prefix) or acl.name.startswith(prefix)
        ]
        if not acls:
            return NOT_NAMED if self._allows_if_none else NOT_ALLOWED
        allowed = NOT_ALLOWED
        operations = {operation, AclOperation.ALL, *_ALLOW_TOO.get(operation, ())}
        for acl in filter(who.is_meant, acls):
            if acl.permission is Permission.DENY:
                if _is_of(acl, operation):
                    return AccessDecision(False, acl)
            elif acl.operation in operations and _names_all(acl, prefix):
                allowed = AccessDecision(True, acl)
        return allowed

    def _decide_any(self, who: "_Who", operation: AclOperation, resource_type: ResourceType) -> AccessDecision:
        if who.principal in self._super_users:
            return SUPER_USER
        if self._allows_if_none and not self._by_name.get((resource_type, PatternType.LITERAL, ANY)):
            return NOT_NAMED
        counting = [acl for acl in self._of_type.get(resource_type, ()) if who.is_meant(acl) and _is_of(acl, operation)]
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

    def _naming(self, resource_type: ResourceType, name: str) -> Iterator[Acl]:
        """Yield the ACLs that name a resource."""
        found = self._by_name.get
        yield from found((resource_type, PatternType.LITERAL, name), ())
        if name != ANY:
            yield from found((resource_type, PatternType.LITERAL, ANY), ())
        sizes: Sequence[int] = self._prefix_sizes.get(resource_type, ())
        for size in sizes:
            if size > len(name):
                return
            yield from found((resource_type, PatternType.PREFIXED, name[:size]), ())


class _Who(NamedTuple):
    """The principal and the address of a caller."""

    principal: str
    host: str

    def is_meant(self, acl: Acl) -> bool:
        return acl.principal in (self.principal, ANY_USER) and acl.host in (self.host, ANY)


def _who(caller: Caller) -> _Who:
    return _Who(str(caller.principal), caller.address)


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
