"""The Kafka client of `conveyor acl`: ACLs, and the settings by which a broker decides.

It is kafka-python, whose requests have Kafka's numbers: librdkafka does not know all operations.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.cli.terminal.kafka_python import ask_any_broker, kafka_python_admin
from conveyor.cluster.acls import AclFilter
from conveyor.kernel.access.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.acl_rules import AclRules
from conveyor.settings.access_settings import AccessSettings

_ANY = 1
_RESOURCE_TYPES = {kind.number: kind for kind in ResourceType}
_PATTERNS = {kind.number: kind for kind in PatternType}
_OPERATIONS = {kind.number: kind for kind in AclOperation}
_PERMISSIONS = {kind.number: kind for kind in Permission}
_SUPER_USERS, _ALLOW_IF_NO_ACL = "super.users", "allow.everyone.if.no.acl.found"


class AclClient:
    """See the module's docstring. Every method raises ClientError."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin

    def add(self, acls: Sequence[Acl]) -> None:
        from kafka.protocol.admin import CreateAclsRequest

        creations = [
            CreateAclsRequest.AclCreation(
                resource_type=acl.resource_type.number,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern.number,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation.number,
                permission_type=acl.permission.number,
            )
            for acl in acls
        ]
        for result in self._ask(CreateAclsRequest(creations=creations)).results:
            _require_success(result)

    def find(self, chosen: AclFilter) -> list[Acl]:
        """Return the ACLs that a filter means."""
        from kafka.protocol.admin import DescribeAclsRequest

        answer = self._ask(DescribeAclsRequest(**_filter_fields(chosen)))
        _require_success(answer)
        return [_acl(resource, entry) for resource in answer.resources for entry in resource.acls]

    def remove(self, chosen: AclFilter) -> list[Acl]:
        """Remove the ACLs that a filter means. Returns them."""
        from kafka.protocol.admin import DeleteAclsRequest

        filters = [DeleteAclsRequest.DeleteAclsFilter(**_filter_fields(chosen))]
        [result] = self._ask(DeleteAclsRequest(filters=filters)).filter_results
        _require_success(result)
        return [_acl(entry, entry) for entry in result.matching_acls]

    def rules(self) -> AclRules:
        """Return the rules by which the brokers decide, as one of them describes its settings."""
        from kafka.admin import ConfigResource, ConfigResourceType

        acls = self.find(AclFilter())
        broker = str(ask_any_broker(self._admin.describe_cluster)["controller_id"])
        wanted = ConfigResource(ConfigResourceType.BROKER, broker, [_SUPER_USERS, _ALLOW_IF_NO_ACL])
        described = ask_any_broker(partial(self._admin.describe_configs, [wanted], config_filter="all"))
        entries = described["broker"][broker]
        if not {_SUPER_USERS, _ALLOW_IF_NO_ACL} <= set(entries):
            raise ClientError("the broker does not tell its super users: you need describe-configs on the cluster")
        settings = AccessSettings(
            super_users=entries[_SUPER_USERS]["value"] or "",
            allow_if_no_acl=entries[_ALLOW_IF_NO_ACL]["value"] == "true",
        )
        return AclRules(acls, settings.super_user_names, allows_if_none=settings.allow_if_no_acl)

    def _ask(self, request: Any) -> Any:
        manager = self._admin._manager  # noqa: SLF001 - its own methods lose the reasons of errors
        return ask_any_broker(lambda: manager.run(manager.send, request))


@contextmanager
def acl_client(bootstrap: str) -> Iterator[AclClient]:
    """Connect to the cluster. Raises ClientError if no broker answers."""
    with kafka_python_admin(bootstrap) as admin:
        yield AclClient(admin)


def _filter_fields(chosen: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": _number(chosen.resource_type),
        "resource_name_filter": chosen.name,
        "pattern_type_filter": chosen.pattern.value,
        "principal_filter": chosen.principal,
        "host_filter": chosen.host,
        "operation": _number(chosen.operation),
        "permission_type": _number(chosen.permission),
    }


def _number(kind: ResourceType | AclOperation | Permission | None) -> int:
    return _ANY if kind is None else kind.number


def _acl(resource: Any, entry: Any) -> Acl:
    try:
        return Acl(
            resource_type=_RESOURCE_TYPES[resource.resource_type],
            name=resource.resource_name,
            pattern=_PATTERNS[resource.pattern_type],
            principal=entry.principal,
            host=entry.host,
            operation=_OPERATIONS[entry.operation],
            permission=_PERMISSIONS[entry.permission_type],
        )
    except KeyError as error:
        raise ClientError(f"the cluster has an ACL that this version does not know: {entry}") from error


def _require_success(answer: Any) -> None:
    if answer.error_code:
        raise ClientError(answer.error_message or f"the broker refused: error {answer.error_code}")
