"""Every endpoint declares the rights that its requests need, and says by fields that exist which resources."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from conveyor.http.endpoints.endpoint import Endpoint
from conveyor.http_api.application import ENDPOINTS
from conveyor.http_api.ops.description import rest_document
from conveyor.kernel.access.acl import ResourceType
from conveyor.kernel.access.declared_access import NO_ACCESS, Access, AnyOf
from conveyor.settings.topic_settings import topic_setting_fields

KNOWN_OF = {"subscription": {"topic", "dead_letter_topic"}, "schedule": {"topic"}}
"""What the broker knows of a resource, and a path can lead to."""


def accesses(endpoint: Endpoint) -> Iterator[Access]:
    for need in endpoint.needs:
        yield from need.alternatives if isinstance(need, AnyOf) else (need,)


def field_types(kind: Any) -> Iterator[Any]:
    """Yield the structs and leaves of an annotated, optional or list type."""
    arguments = [argument for argument in get_args(kind) if not isinstance(argument, msgspec.Meta)]
    if not arguments:
        yield kind
    for argument in arguments if get_origin(kind) is not dict else ():
        yield from field_types(argument)


def is_dictionary(kind: Any) -> bool:
    return get_origin(get_args(kind)[0] if get_origin(kind) is Annotated else kind) is dict


def leads_to(kinds: list[Any], names: list[str]) -> bool:
    """Return whether a path of fields begins at one of some structs, up to what the broker knows of its last one."""
    if not names:
        return True
    structs = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    for struct in structs:
        for field in msgspec.structs.fields(struct):
            if field.encode_name == names[0]:
                rest = names[1:]
                if len(rest) == 1 and rest[0] in KNOWN_OF.get(names[0], ()):
                    return True
                if is_dictionary(field.type):
                    return ".".join(rest) in topic_setting_fields()
                return leads_to([*field_types(field.type)], rest)
    return False


def is_found(endpoint: Endpoint, path: str) -> bool:
    first, *rest = path.split(".")
    if first == "body":
        return leads_to([*field_types(endpoint.signature.body)], rest)
    return first in re.findall(r"{(\w+)}", endpoint.path) and all(name in KNOWN_OF[first] for name in rest)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
def test_the_resources_are_named_by_fields_that_exist(endpoint: Endpoint) -> None:
    for access in accesses(endpoint):
        assert access.resource_type is not ResourceType.CLUSTER or not access.named_by
        assert [path for path in access.named_by if not is_found(endpoint, path)] == []


def test_only_what_shows_no_data_needs_no_right() -> None:
    free = {endpoint.path for endpoint in ENDPOINTS if endpoint.needs == NO_ACCESS}
    assert free == {"/healthz", "/readyz", "/openapi.json", "/docs"}
    assert free == {endpoint.path for endpoint in ENDPOINTS if endpoint.is_public}


def test_a_resource_of_the_path_needs_a_right() -> None:
    """All of a path's topics, subscriptions and schedules are in its declaration."""
    for endpoint in ENDPOINTS:
        named = {path.split(".")[0] for access in accesses(endpoint) for path in access.named_by}
        resources = {*re.findall(r"{(\w+)}", endpoint.path)} - {"message_id"}
        if "subscription" in resources:  # Its topic is that of the path, or the request is refused.
            resources.discard("topic")
        assert resources <= named, f"{endpoint.method} {endpoint.path}"


@pytest.mark.parametrize(
    ("endpoint", "needs"),
    {
        "POST /topics": ["Create Cluster or Create Topic", "Write Topic"],
        "POST /topics/{topic}/messages": ["Write Topic", "Create Cluster or Create Topic"],
        "GET /subscriptions/{subscription}/messages": ["Read Group", "Read Topic"],
        "POST /subscriptions/{subscription}/ack": ["Read Group", "Read Topic"],
        "POST /subscriptions/{subscription}/peek": ["Describe Group", "Read Topic"],
        "POST /subscriptions/{subscription}/purge": ["Delete Group", "Read Topic"],
        "POST /subscriptions/{subscription}/pause": ["AlterConfigs Group"],
        "DELETE /topics/{topic}/messages/{message_id}": ["Delete Topic"],
        "POST /schedules": ["Write Topic"],
        "POST /transactions": ["Write Topic", "Create Cluster or Create Topic", "Read Group", "Read Topic"],
        "GET /metrics": ["Describe Cluster"],
    }.items(),
)
def test_the_verbs_of_a_queue_are_those_of_kafkas_groups(endpoint: str, needs: list[str]) -> None:
    [found] = [one for one in ENDPOINTS if f"{one.method} {one.path}" == endpoint]
    assert list(map(str, found.needs)) == needs


def test_openapi_shows_the_rights() -> None:
    paths = rest_document(ENDPOINTS)["paths"]
    create = {"operation": "Create", "resource": "Cluster"}
    by_name = {"operation": "Create", "resource": "Topic", "named_by": ["topic"]}
    assert paths["/topics/{topic}/messages"]["post"]["x-conveyor-needs"] == [
        {"operation": "Write", "resource": "Topic", "named_by": ["topic"]},
        {"any_of": [create, by_name], "to_create": True},
    ]
    assert paths["/healthz"]["get"]["x-conveyor-needs"] == []
    for endpoint in ENDPOINTS:
        operation = paths[endpoint.path][endpoint.method.lower()]
        assert not endpoint.needs or "403" in operation["responses"]
