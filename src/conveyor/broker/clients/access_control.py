"""Decides what a client may do, for each request, by the ACLs of the image and the settings.

The doors ask before they pass a request on. A request that waits for records or messages asks again before they are
delivered.
"""

import logging
from collections.abc import Sequence

from conveyor.broker.clients.audit import Audit
from conveyor.broker.services import Services
from conveyor.cluster.acls import MAX_FILTERS, MAX_FOUND, AclFilter, added, check_acl, meant, removed, still_in
from conveyor.cluster.changes import AclRemoved
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.access.acl import ANY, OPERATIONS, Acl, AclOperation, ResourceType
from conveyor.kernel.access.acl_rules import AccessDecision, AclRules
from conveyor.kernel.access.caller import Caller, PrincipalType
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure, metadata_failure

log = logging.getLogger(__name__)

_COMPARISONS_IN_SLICE = 5_000
"""Of an ACL with a filter, in one turn of the loop: about 2 ms."""
_EVERYTHING = AccessDecision(True, "everything is allowed to brokers, and to everybody without ACLs (access.enabled)")


class AccessControl:
    """See the module's docstring.

    rules: None if everybody may do everything (access.enabled). audit: None if there is none (access.audit).
    """

    def __init__(self, services: Services) -> None:
        self._metadata = services.metadata
        self._settings = services.settings.access
        self._slices = services.slices
        self.rules: AclRules | None = None
        self.audit = Audit(services) if self._settings.enabled and self._settings.audit else None
        if self._settings.enabled:
            self._use(services.metadata.image)
            services.metadata.listen(self._observe)

    def decide(self, caller: Caller, operation: AclOperation, resource_type: ResourceType, name: str) -> AccessDecision:
        """Return whether a caller may do something with a resource, and why. A broker may do everything."""
        rules = self.rules
        if rules is None or caller.principal.type is PrincipalType.BROKER:
            return _EVERYTHING
        return rules.decide(caller, operation, resource_type, name)

    def decide_any(self, caller: Caller, operation: AclOperation, resource_type: ResourceType) -> AccessDecision:
        """Return whether a caller may do something with any resource of a type, and why."""
        rules = self.rules
        if rules is None or caller.principal.type is PrincipalType.BROKER:
            return _EVERYTHING
        return rules.decide_any(caller, operation, resource_type)

    def decide_all(
        self, caller: Caller, operation: AclOperation, resource_type: ResourceType, prefix: str = ""
    ) -> AccessDecision:
        """Return whether a caller may do something with every resource of a type whose name begins with a prefix, and
        why.
        """
        rules = self.rules
        if rules is None or caller.principal.type is PrincipalType.BROKER:
            return _EVERYTHING
        return rules.decide_all(caller, operation, resource_type, prefix)

    def allows(self, caller: Caller, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return whether a caller may do something with a resource. For what permits or refuses nothing: the audit does
        not hear of it.
        """
        return self.decide(caller, operation, resource_type, name).is_allowed

    def permits(
        self, caller: Caller, request: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether a caller may do what a request asks for, and let the audit know. request: see `Audit.note`."""
        decision = self.decide(caller, operation, resource_type, name)
        if self.audit is not None:
            self.audit.note(caller, request, operation, resource_type, name, decision)
        return decision.is_allowed

    def permits_all(
        self, caller: Caller, request: str, operation: AclOperation, resource_type: ResourceType, prefix: str
    ) -> bool:
        """As `permits`, of every resource of a type whose name begins with a prefix."""
        decision = self.decide_all(caller, operation, resource_type, prefix)
        if self.audit is not None:
            self.audit.note(caller, request, operation, resource_type, f"{prefix}{ANY}", decision)
        return decision.is_allowed

    def operations(self, caller: Caller, resource_type: ResourceType, name: str) -> int:
        """Return the operations that a caller may do, as Kafka's set of bits (KIP-430)."""
        rules = self.rules
        if rules is None or caller.principal.type is PrincipalType.BROKER:
            permitted: Sequence[AclOperation] = OPERATIONS[resource_type]
        else:
            permitted = rules.operations(caller, resource_type, name)
        return sum(1 << operation.number for operation in permitted)

    def require_enabled(self) -> None:
        """Raise RequestError (SECURITY_DISABLED) if the cluster has no ACLs."""
        if self.rules is None:
            raise RequestError(
                ErrorKind.SECURITY_DISABLED, "this broker has no ACLs: start all brokers with access.enabled=true"
            )

    async def add(self, caller: Caller, acls: Sequence[Acl]) -> Sequence[RequestError | None]:
        """Add ACLs, durably; they count at once. Returns the error of each that could never count.

        Raises RequestError if none could be added.
        """
        self.require_enabled()
        errors = [_error(acl) for acl in acls]
        valid = [acl for acl, error in zip(acls, errors, strict=True) if error is None]
        await self._metadata.propose(lambda image: added(image, valid))
        if valid:
            log.info("acls added count=%d caller=%s", len(valid), caller)
        return errors

    async def find(self, chosen: AclFilter) -> Sequence[Acl]:
        """Return the ACLs that a filter means. Raises RequestError."""
        self.require_enabled()
        return (await self._meant([chosen]))[0]

    async def remove(self, caller: Caller, filters: Sequence[AclFilter]) -> Sequence[Sequence[Acl]]:
        """Remove the ACLs that filters mean, durably and with immediate effect. Returns those of each filter.

        Those that another broker has added before are found. Raises RequestError, and removes nothing then.
        """
        self.require_enabled()
        if len(filters) > MAX_FILTERS:
            many = f"{len(filters)} filters of ACLs: a request may have {MAX_FILTERS}"
            raise RequestError(ErrorKind.INVALID_REQUEST, many)
        try:
            await self._metadata.catch_up()
        except StorageFailure as failure:
            raise metadata_failure(failure) from failure
        found = left = await self._meant(filters)

        def decide(image: ClusterImage) -> Sequence[AclRemoved]:
            nonlocal left
            left = still_in(image, found)
            return removed(left)

        await self._metadata.propose(decide)
        if any(left):
            log.info("acls removed count=%d caller=%s", sum(map(len, left)), caller)
        return left

    async def _meant(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        """Return the ACLs that each filter means, a slice of the comparisons in a turn. Raises RequestError."""
        found: list[list[Acl]] = [[] for _ in filters]
        count = 0
        acls = tuple(self._metadata.image.acls)
        in_slice = max(1, _COMPARISONS_IN_SLICE // max(1, len(filters)))
        for start in range(0, len(acls), in_slice):
            await self._slices.turn()
            for of_filter, more in zip(found, meant(acls[start : start + in_slice], filters), strict=True):
                of_filter += more
                count += len(more)
            if count > MAX_FOUND:
                raise RequestError(
                    ErrorKind.INVALID_REQUEST,
                    f"the filters mean more than {MAX_FOUND} ACLs together: send fewer filters in a request",
                )
        return found

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.acls is not new.acls:
            self._use(new)

    def _use(self, image: ClusterImage) -> None:
        settings = self._settings
        self.rules = AclRules(image.acls, settings.super_user_names, allows_if_none=settings.allow_if_no_acl)


def _error(acl: Acl) -> RequestError | None:
    try:
        check_acl(acl)
    except RequestError as error:
        return error.detached()
    return None
