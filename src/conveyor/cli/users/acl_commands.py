"""`conveyor acl`: who may, or may not, do what."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from conveyor.cli.terminal.confirmation import Yes, confirm
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, ClientError, Json, counted
from conveyor.cli.terminal.table import print_table
from conveyor.cli.users.acl_client import acl_client
from conveyor.cli.users.acl_words import ANYTHING, operations_of, resource_type_of, word
from conveyor.cluster.acls import AclFilter, PatternFilter, check_acl
from conveyor.kernel.access.acl import ANY, CLUSTER_NAME, Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.caller import PLAINTEXT, Caller, Principal, PrincipalType

app = typer.Typer(
    help="Say who may do what, by ACLs.\n\n"
    "ACLs count if the brokers run with `access.enabled=true`. Then everything is denied that no ACL allows, except to"
    " the users of `access.super_users`. See docs/security.md.\n\n"
    "\b\nExamples:\n  conveyor acl add User:alice read,write topic orders\n"
    "  conveyor acl add User:alice read group billing\n  conveyor acl test User:alice read topic orders",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_COLUMNS = ("principal", "host", "permission", "operation", "type", "name", "pattern")

PrincipalName = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="`User:` and the name of the user; `User:*` is everybody.")
]
Operations = Annotated[
    str, typer.Argument(metavar="OPERATIONS", help="Such as `read`, `read,write` or `all`; a wrong one lists them.")
]
TypeName = Annotated[
    str,
    typer.Argument(metavar="TYPE", help="`topic`, `group` (a subscription as well), `transactional-id`, `cluster`."),
]
ResourceName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The name of the resource; `*` is any. A cluster needs none.")
]
AnyPrincipal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="As in `conveyor acl add`; `any`: whichever principal the ACLs have.")
]
AnyOperations = Annotated[
    str, typer.Argument(metavar="OPERATIONS", help="Only ACLs about these; `any`: whichever they are about.")
]
AnyType = Annotated[str | None, typer.Argument(metavar="TYPE", help="Only ACLs about this type of resource.")]
Host = Annotated[str | None, typer.Option(metavar="ADDRESS", help="The IP address of the clients.")]


def add(
    principal: PrincipalName,
    operations: Operations,
    resource_type: TypeName,
    name: ResourceName = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="For all resources whose names begin with NAME.")] = False,
    host: Host = None,
    deny: Annotated[bool, typer.Option("--deny", help="Deny instead of allow, whatever other ACLs allow.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Allow a user to do something, or deny it.

    Who may read, write, delete or alter a resource may also describe it.

    \b
    Examples:
      conveyor acl add User:alice read,write topic orders
      conveyor acl add User:alice read group billing --prefix
      conveyor acl add 'User:*' delete topic '*' --deny
      conveyor acl add User:ops alter,describe cluster
    """
    chosen = resource_type_of(resource_type)
    acls = [
        Acl(
            resource_type=chosen,
            name=_resource_name(chosen, name),
            pattern=PatternType.PREFIXED if prefix else PatternType.LITERAL,
            principal=principal,
            host=host or ANY,
            operation=operation,
            permission=Permission.DENY if deny else Permission.ALLOW,
        )
        for operation in operations_of(operations, chosen)
    ]
    for acl in acls:
        check_acl(acl)
    with acl_client(bootstrap) as client:
        client.add(acls)
    _tell("added", acls)


def list_(
    principal: AnyPrincipal = ANYTHING,
    operations: AnyOperations = ANYTHING,
    resource_type: AnyType = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only ACLs that count for this resource.")] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List ACLs: all, or those with these values.

    For a NAME, also those are listed that count for it by a prefix, or by `*`.

    \b
    Examples:
      conveyor acl list User:alice
      conveyor acl list any any topic orders
    """
    filters = _filters(principal, operations, resource_type, name, PatternFilter.MATCHING)
    with acl_client(bootstrap) as client:
        acls = [acl for chosen in filters for acl in client.find(chosen)]
    if as_json:
        return typer.echo(json.dumps([dict(zip(_COLUMNS, _row(acl), strict=True)) for acl in acls]))
    if not acls:
        return typer.echo("no such ACLs: add one with 'conveyor acl add'")
    _print(acls)


def remove(
    principal: AnyPrincipal,
    operations: AnyOperations = ANYTHING,
    resource_type: AnyType = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only ACLs with exactly this name, or prefix.")
    ] = None,
    prefix: Annotated[
        bool | None, typer.Option("--prefix/--literal", help="Only ACLs for a prefix, or for a name.")
    ] = None,
    host: Host = None,
    deny: Annotated[
        bool | None, typer.Option("--deny/--allow", help="Only ACLs that deny, or that allow.", show_default=False)
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove ACLs. Lists them, and asks for confirmation.

    \b
    Examples:
      conveyor acl remove User:alice
      conveyor acl remove User:alice write topic orders
      conveyor acl remove any any topic orders --yes
    """
    pattern = {None: PatternFilter.ANY, True: PatternFilter.PREFIXED, False: PatternFilter.LITERAL}[prefix]
    permission = {None: None, True: Permission.DENY, False: Permission.ALLOW}[deny]
    filters = _filters(principal, operations, resource_type, name, pattern, host, permission)
    with acl_client(bootstrap) as client:
        if not yes:
            found = [acl for chosen in filters for acl in client.find(chosen)]
            if not found:
                return typer.echo("no such ACLs")
            _print(found)
            confirm(f"Remove {counted(len(found), 'ACL')}?", yes)
        removed = [acl for chosen in filters for acl in client.remove(chosen)]
    _tell("removed", removed)


def decide(
    principal: PrincipalName,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="Such as `read`.")],
    resource_type: TypeName,
    name: ResourceName = None,
    host: Host = None,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Tell whether a user may do something, and which ACL decides. The exit code is 1 if it is denied.

    Without --host, ACLs for single addresses do not count.

    \b
    Examples:
      conveyor acl test User:alice read topic orders
      conveyor acl test User:alice read topic orders --host 192.0.2.7
    """
    chosen = resource_type_of(resource_type)
    [asked, *more] = operations_of(operation, chosen)
    if more:
        raise ClientError("give one operation")
    resource = _resource_name(chosen, name)
    check_acl(Acl(chosen, resource, PatternType.LITERAL, principal, host or ANY, asked, Permission.ALLOW))
    user = Principal(PrincipalType.USER, principal.partition(":")[2])
    with acl_client(bootstrap) as client:
        decision = client.rules().decide(Caller(user, host or ANY, PLAINTEXT, 1), asked, chosen, resource)
    if as_json:
        typer.echo(json.dumps({"allowed": decision.is_allowed, "rule": str(decision.rule)}))
    else:
        typer.echo(f"{'allowed' if decision.is_allowed else 'denied'}: {decision.rule}")
    if not decision.is_allowed:
        raise typer.Exit(1)


for function, command in ((add, "add"), (list_, "list"), (remove, "remove"), (decide, "test")):
    app.command(command)(function)


def _resource_name(resource_type: ResourceType, name: str | None) -> str:
    if resource_type is ResourceType.CLUSTER:
        return name or CLUSTER_NAME
    if name is None:
        raise ClientError(f"name the {word(resource_type)}: '*' is any")
    return name


def _filters(
    principal: str,
    operations: str,
    resource_type: str | None,
    name: str | None,
    pattern: PatternFilter,
    host: str | None = None,
    permission: Permission | None = None,
) -> list[AclFilter]:
    """Return a filter for each operation; one if the operations do not matter. Raises ClientError."""
    chosen = None if resource_type is None else resource_type_of(resource_type)
    wanted: Sequence[AclOperation | None] = [None]
    if operations != ANYTHING:
        wanted = operations_of(operations, chosen)
    return [
        AclFilter(
            resource_type=chosen,
            name=name,
            pattern=pattern,
            principal=None if principal == ANYTHING else principal,
            host=host,
            operation=operation,
            permission=permission,
        )
        for operation in wanted
    ]


def _row(acl: Acl) -> tuple[str, ...]:
    kinds = word(acl.permission), word(acl.operation), word(acl.resource_type)
    return acl.principal, acl.host, *kinds, acl.name, word(acl.pattern)


def _print(acls: Sequence[Acl]) -> None:
    print_table(_COLUMNS, [_row(acl) for acl in acls])


def _tell(done: str, acls: Sequence[Acl]) -> None:
    for acl in acls:
        typer.echo(f"{done}: {acl}")
    if not acls:
        typer.echo(f"no such ACLs: nothing {done}")
