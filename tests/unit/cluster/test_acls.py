"""Which ACLs may be added, which a filter means, and how they are kept."""

from uuid import UUID

import msgspec
import pytest

from conveyor.cluster.acls import (
    MAX_ACLS,
    MAX_TEXT_BYTES,
    AclFilter,
    PatternFilter,
    added,
    check_acl,
    meant,
    removed,
    still_in,
)
from conveyor.cluster.changes import AclAdded, AclRemoved, Change, fold, whole_image
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.metadata_log import LogEntry, decode_entry, encode_entry
from conveyor.kernel.access.acl import CLUSTER_NAME, Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.errors import ErrorKind, RequestError

ACL = Acl(ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", AclOperation.READ, Permission.ALLOW)


def like(**fields: object) -> Acl:
    return msgspec.structs.replace(ACL, **fields)


PREFIX = like(name="ord", pattern=PatternType.PREFIXED)
LONGER_PREFIX = like(name="orders-", pattern=PatternType.PREFIXED)
PREFIX_OF_SAME_NAME = like(pattern=PatternType.PREFIXED)
STAR = like(name="*")
GROUP = like(resource_type=ResourceType.GROUP)
WRITE = like(operation=AclOperation.WRITE)
BOB = like(principal="User:bob")
HOST = like(host="192.0.2.1")
DENIAL = like(permission=Permission.DENY)
ALL = [ACL, PREFIX, LONGER_PREFIX, PREFIX_OF_SAME_NAME, STAR, GROUP, WRITE, BOB, HOST, DENIAL]
ENTRIES = [ACL, WRITE, BOB, HOST, DENIAL]
"""Those of the topic by its name."""


def image_of(*acls: Acl) -> ClusterImage:
    return fold(ClusterImage(), [AclAdded(acl=acl) for acl in acls], 1)


@pytest.mark.parametrize(
    "acl",
    [
        ACL,
        like(name="*"),
        like(name="o" * MAX_TEXT_BYTES),
        like(principal="User:*"),
        like(principal="User:CN=alice,O=Example: Ltd"),
        like(host="2001:db8::1"),
        like(resource_type=ResourceType.CLUSTER, name=CLUSTER_NAME),
        like(resource_type=ResourceType.USER),
        like(resource_type=ResourceType.TRANSACTIONAL_ID, name="any\nthing"),
    ],
    ids=str,
)
def test_acl_that_may_count_is_accepted(acl: Acl) -> None:
    check_acl(acl)


@pytest.mark.parametrize(
    ("acl", "reason"),
    [
        (like(name=""), "an ACL names a resource"),
        (like(name="", pattern=PatternType.PREFIXED), "an ACL names a resource"),
        (like(name="o" * (MAX_TEXT_BYTES + 1)), "at most 1024 bytes"),
        (like(principal="User:" + "ä" * 512), "at most 1024 bytes"),
        (like(host="1" * (MAX_TEXT_BYTES + 1)), "at most 1024 bytes"),
        (like(principal="alice"), "the principal 'alice'"),
        (like(principal=""), "the principal ''"),
        (like(principal="User:"), "the principal 'User:'"),
        (like(principal="user:alice"), "the principal 'user:alice'"),
        (like(principal="Group:staff"), "the principal 'Group:staff'"),
        (like(principal="Broker:1"), "the principal 'Broker:1'"),
        (like(host=""), "the host ''"),
        (like(host="client.example"), "the host 'client.example'"),
        (like(host="192.0.2.0/24"), "it is an IP address"),
        (like(host="192.0.2.*"), "it is an IP address"),
        (like(host="::ffff:192.0.2.1"), "it is an IP address"),
        (like(host="::ffff:c000:201"), "it is an IP address"),
        (like(host="2001:db8:0:0:0:0:0:1"), "it is an IP address, as '192.0.2.1' or '2001:db8::1'"),
        (like(resource_type=ResourceType.CLUSTER), "is kafka-cluster"),
        (like(resource_type=ResourceType.CLUSTER, name="*"), "is kafka-cluster"),
        (
            like(resource_type=ResourceType.CLUSTER, name=CLUSTER_NAME, pattern=PatternType.PREFIXED),
            "is kafka-cluster",
        ),
    ],
)
def test_acl_that_could_never_count_is_refused(acl: Acl, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        check_acl(acl)
    assert refused.value.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (AclFilter(), ALL),
        (AclFilter(name="orders"), [*ENTRIES, PREFIX_OF_SAME_NAME, GROUP]),
        (AclFilter(ResourceType.TOPIC, "orders", PatternFilter.LITERAL), ENTRIES),
        (AclFilter(ResourceType.TOPIC, "orders", PatternFilter.PREFIXED), [PREFIX_OF_SAME_NAME]),
        (AclFilter(ResourceType.TOPIC, "orders", PatternFilter.ANY), [*ENTRIES, PREFIX_OF_SAME_NAME]),
        (
            AclFilter(ResourceType.TOPIC, "orders", PatternFilter.MATCHING),
            [*ENTRIES, PREFIX, PREFIX_OF_SAME_NAME, STAR],
        ),
        (
            AclFilter(name="orders-eu", pattern=PatternFilter.MATCHING),
            [PREFIX, LONGER_PREFIX, PREFIX_OF_SAME_NAME, STAR],
        ),
        (AclFilter(name="*", pattern=PatternFilter.MATCHING), [STAR]),
        (AclFilter(name="*", pattern=PatternFilter.LITERAL), [STAR]),
        (AclFilter(name="*"), [STAR]),
        (AclFilter(name="ord"), [PREFIX]),
        (AclFilter(name="ord", pattern=PatternFilter.LITERAL), []),
        (AclFilter(name=""), []),
        (AclFilter(name="", pattern=PatternFilter.MATCHING), [STAR]),
        (AclFilter(pattern=PatternFilter.MATCHING), ALL),
        (AclFilter(pattern=PatternFilter.PREFIXED), [PREFIX, LONGER_PREFIX, PREFIX_OF_SAME_NAME]),
        (AclFilter(ResourceType.GROUP), [GROUP]),
        (AclFilter(ResourceType.CLUSTER), []),
        (AclFilter(principal="User:bob"), [BOB]),
        (AclFilter(principal="User:*"), []),
        (AclFilter(host="192.0.2.1"), [HOST]),
        (AclFilter(operation=AclOperation.WRITE), [WRITE]),
        (AclFilter(operation=AclOperation.ALL), []),
        (AclFilter(permission=Permission.DENY), [DENIAL]),
    ],
)
def test_filter_means_the_acls_that_have_its_values(chosen: AclFilter, expected: list[Acl]) -> None:
    assert {acl for acl in ALL if chosen.means(acl)} == set(expected)


def test_acl_is_added_once() -> None:
    image = image_of(ACL)
    assert added(image, [ACL, WRITE, WRITE]) == [AclAdded(acl=WRITE)]
    assert added(image, []) == []


def test_cluster_has_a_limit_of_acls() -> None:
    image = image_of(*(like(name=f"topic-{number}") for number in range(MAX_ACLS - 1)))
    assert len(added(image, [ACL, ACL, like(name="topic-7")])) == 1
    with pytest.raises(RequestError, match="more than 20000 ACLs") as refused:
        added(image, [ACL, WRITE])
    assert refused.value.kind is ErrorKind.INVALID_REQUEST


def test_removal_of_one_acl_leaves_the_others_of_its_resource() -> None:
    """Source: CVE-2024-27309."""
    image = image_of(*ALL)
    for gone in ALL:
        found = meant(image.acls, [exactly(gone)])
        assert found == [[gone]]
        assert list(fold(image, removed(found), 2).acls) == [acl for acl in ALL if acl != gone]


def exactly(acl: Acl) -> AclFilter:
    pattern = PatternFilter[acl.pattern.name]
    return AclFilter(acl.resource_type, acl.name, pattern, acl.principal, acl.host, acl.operation, acl.permission)


def test_acl_that_several_filters_mean_is_found_by_each_and_removed_once() -> None:
    image = image_of(*ENTRIES)
    found = meant(image.acls, [AclFilter(principal="User:bob"), AclFilter(name="orders"), AclFilter(name="nothing")])
    assert found == [[BOB], ENTRIES, []]
    assert removed(found) == [AclRemoved(acl=acl) for acl in (BOB, ACL, WRITE, HOST, DENIAL)]


def test_what_another_client_has_removed_is_not_found_any_more() -> None:
    assert still_in(image_of(ACL, BOB), [[ACL, WRITE], [WRITE], [BOB]]) == [[ACL], [], [BOB]]


def test_acls_come_and_go_in_their_order() -> None:
    image = image_of(ACL, BOB, WRITE)
    assert list(image.acls) == [ACL, BOB, WRITE]
    after = fold(image, [AclRemoved(acl=BOB), AclRemoved(acl=GROUP), AclAdded(acl=BOB)], 2)
    assert list(after.acls) == [ACL, WRITE, BOB]
    assert fold(after, [AclAdded(acl=ACL)], 3).acls == after.acls


def test_acls_are_kept_in_the_metadata_log() -> None:
    changes: tuple[Change, ...] = (*(AclAdded(acl=acl) for acl in ALL), AclRemoved(acl=BOB))
    entry = LogEntry(controller_epoch=1, batch=UUID(int=7), changes=changes)
    again = decode_entry(1, encode_entry(entry))
    assert again == entry
    image = fold(ClusterImage(), again.changes, 1)
    assert list(fold(ClusterImage(), whole_image(image), 1).acls) == [acl for acl in ALL if acl != BOB]


def test_acl_is_kept_by_the_names_of_its_kinds() -> None:
    """The numbers are Kafka's, and only sent."""
    assert msgspec.json.encode(AclAdded(acl=ACL)) == (
        b'{"change":"acl","acl":["Topic","orders","Literal","User:alice","*","Read","Allow"]}'
    )
