"""The kinds of values in ACLs have Kafka's names and numbers, as kafka-python knows them."""

from enum import Enum
from typing import Any

import pytest
from kafka.admin import ACLOperation, ACLPermissionType, ACLResourcePatternType
from kafka.admin import ResourceType as KafkaResourceType

from conveyor.cluster.acls import PatternFilter
from conveyor.kernel.access.acl import OPERATIONS, AclOperation, PatternType, Permission, ResourceType

LATER = {"TWO_PHASE_COMMIT": 15}
"""Kafka's AclOperation has it since 4.1 (KIP-939), and kafka-python has not."""


@pytest.mark.parametrize(
    ("ours", "kafkas"),
    [
        (AclOperation, ACLOperation),
        (ResourceType, KafkaResourceType),
        (PatternType, ACLResourcePatternType),
        (Permission, ACLPermissionType),
    ],
)
def test_numbers_and_names_are_kafkas(ours: Any, kafkas: type[Enum]) -> None:
    expected = {member.name: member.value for member in kafkas} | (LATER if ours is AclOperation else {})
    for name in ("UNKNOWN", "ANY", "MATCH"):
        expected.pop(name, None)
    assert {member.name: member.number for member in ours} == expected
    for member in ours:
        assert member.value.upper() == member.name.replace("_", "")
        assert ours(member.value) is member


def test_pattern_of_a_filter_may_be_any_or_matching() -> None:
    expected = {member.name: member.value for member in ACLResourcePatternType if member.name != "UNKNOWN"}
    assert {chosen.name.replace("MATCHING", "MATCH"): chosen.value for chosen in PatternFilter} == expected


def test_each_type_of_resource_has_operations() -> None:
    assert OPERATIONS.keys() == set(ResourceType)
    for operations in OPERATIONS.values():
        assert AclOperation.ALL not in operations
        assert len(set(operations)) == len(operations)
