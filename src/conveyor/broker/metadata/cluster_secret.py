"""The secret that all brokers of a cluster share, by which they recognise each other.

    /cluster-secret    32 random bytes, in hexadecimal digits; written once, by the first broker

A client that can read the metadata store can pretend to be a broker, and could as well change the metadata.
"""

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NewId
from conveyor.kernel.ports import ABSENT, MetadataStore, PutNode

CLUSTER_SECRET_PATH = "/cluster-secret"  # noqa: S105 - where it is, not what it is
_MIN_BYTES = 32


async def cluster_secret(store: MetadataStore, new_id: NewId) -> bytes:
    """Return the secret of the cluster, which the first call creates. new_id: must be unpredictable.

    Raises StorageFailure.
    """
    while True:
        node = await store.get(CLUSTER_SECRET_PATH)
        if node is not None:
            return _decoded(node.value)
        secret = new_id().bytes + new_id().bytes  # A random UUID has 122 random bits.
        await store.commit(PutNode(CLUSTER_SECRET_PATH, secret.hex().encode(), ABSENT))


def _decoded(content: bytes) -> bytes:
    try:
        secret = bytes.fromhex(content.decode())
    except ValueError as error:
        raise StorageFailure(f"metadata store: node {CLUSTER_SECRET_PATH} is damaged") from error
    if len(secret) < _MIN_BYTES:
        raise StorageFailure(f"metadata store: node {CLUSTER_SECRET_PATH} is too short")
    return secret
