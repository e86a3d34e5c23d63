"""Who may do what: the ACLs of the image and the settings decide, on each request anew.

The doors ask before they pass a request on. Who waits, for records or messages, asks again before they are delivered.
"""

from collections.abc import Sequence

from conveyor.broker.services import Services
from conveyor.cluster.acls import AclFilter, added, meant, removed
from conveyor.cluster.changes import AclRemoved
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.access.acl import OPERATIONS, Acl, AclOperation, ResourceType
from conveyor.kernel.access.acl_rules import AclRules
from conveyor.kernel.access.caller import Caller, PrincipalType
from conveyor.kernel.errors import ErrorKind, RequestError


class AccessControl:
    """See the module's docstring. rules: None if everybody may do everything (access.enabled)."""

    def __init__(self, services: Services) -> None:
        self._metadata = services.metadata
        self._settings = services.settings.access
        self.rules: AclRules | None = None
        if self._settings.enabled:
            self._use(services.metadata.image)
            services.metadata.listen(self._observe)

    def allows(self, caller: Caller, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return whether a caller may do something with a resource. A broker may do everything."""
        rules = self.rules
        if rules is None or caller.principal.type is PrincipalType.BROKER:
            return True
        return rules.decide(caller, operation, resource_type, name).is_allowed

    def allows_any(self, caller: Caller, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Return whether a caller may do something with any resource of a type."""
        rules = self.rules
        if rules is None or caller.principal.type is PrincipalType.BROKER:
            return True
        return rules.decide_any(caller, operation, resource_type).is_allowed

    def operations(self, caller: Caller, resource_type: ResourceType, name: str) -> int:
        """Return the operations that a caller may do, as Kafka's set of bits (KIP-430)."""
        permitted = (each for each in OPERATIONS[resource_type] if self.allows(caller, each, resource_type, name))
        return sum(1 << operation.number for operation in permitted)

    async def add(self, caller: Caller, acls: Sequence[Acl]) -> None:
        """Add ACLs, durably; they count at once. Raises RequestError."""
        self._require_enabled()
        await self._metadata.propose(lambda image: added(image, acls))

    def list(self, chosen: AclFilter) -> Sequence[Acl]:
        """Return the ACLs that a filter means. Raises RequestError."""
        self._require_enabled()
        return meant(self._metadata.image, [chosen])[0]

    async def remove(self, caller: Caller, filters: Sequence[AclFilter]) -> Sequence[Sequence[Acl]]:
        """Remove the ACLs that filters mean, durably and with immediate effect. Returns those of each filter.

        Raises RequestError.
        """
        self._require_enabled()
        found: list[list[Acl]] = []

        def decide(image: ClusterImage) -> list[AclRemoved]:
            nonlocal found
            found = meant(image, filters)
            return removed([acl for acls in found for acl in acls])

        await self._metadata.propose(decide)
        return found

    def _require_enabled(self) -> None:
        if self.rules is None:
            raise RequestError(ErrorKind.SECURITY_DISABLED, "this broker has no ACLs: set access.enabled")

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.acls is not new.acls:
            self._use(new)

    def _use(self, image: ClusterImage) -> None:
        settings = self._settings
        self.rules = AclRules(image.acls, settings.super_user_names, allows_if_none=settings.allow_if_no_acl)
