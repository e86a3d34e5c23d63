"""The id of a new cluster has Kafka's format."""

from base64 import urlsafe_b64decode
from uuid import UUID, uuid4

from conveyor.cluster.cluster_id import new_cluster_id


def test_cluster_id_is_a_uuid_in_22_characters() -> None:
    identity = uuid4()
    while identity.bytes[0] >> 2 == 62:
        identity = uuid4()
    cluster_id = new_cluster_id(lambda: identity)
    assert len(cluster_id) == 22
    assert urlsafe_b64decode(cluster_id + "==") == identity.bytes


def test_cluster_id_never_starts_with_a_dash() -> None:
    drawn = iter([UUID(bytes=b"\xf8" + bytes(15)), UUID(bytes=b"\xfb" + bytes(15)), UUID(bytes=b"\xfc" + bytes(15))])
    assert new_cluster_id(lambda: next(drawn)) == "_" + "A" * 21
