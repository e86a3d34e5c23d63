"""The secret that all brokers of a cluster share, by which they recognise each other.

    /cluster-secret    32 random bytes, in hexadecimal digits or encrypted; written once, by the first broker

A client that can read the metadata store, and the key file if there is one, can pretend to be a broker. One that can
write the store needs no secret to change the metadata.
"""

import logging
from typing import Protocol

from conveyor.kernel.errors import StartupError, StorageFailure
from conveyor.kernel.ids import NewId, random_secret
from conveyor.kernel.ports import ABSENT, MetadataStore, PutNode

log = logging.getLogger(__name__)

CLUSTER_SECRET_PATH = "/cluster-secret"  # noqa: S105 - where it is, not what it is
ENCRYPTED = b"encrypted "
"""How the content of a node begins that `SecretKeys` have encrypted."""
_MIN_BYTES = 32


class SecretKeys(Protocol):
    """Keys that are not in the metadata store, for what is secret there."""

    def encrypt(self, path: str, secret: bytes) -> bytes:
        """Return the content of a node, which begins with ENCRYPTED."""
        ...

    def decrypt(self, path: str, content: bytes) -> bytes:
        """Return the secret in a node. Raises StartupError for the lack of its key, StorageFailure for damage."""
        ...

    def is_current(self, content: bytes) -> bool:
        """Return whether a node is encrypted by the key that encrypts today."""
        ...


async def cluster_secret(store: MetadataStore, new_id: NewId, keys: SecretKeys | None = None) -> bytes:
    """Return the secret of the cluster, which the first call creates. With keys it is encrypted from now on.

    new_id: must be unpredictable. Raises StorageFailure; StartupError if it is encrypted and its key is missing.
    """
    while True:
        node = await store.get(CLUSTER_SECRET_PATH)
        if node is None:
            version, secret = ABSENT, random_secret(new_id)
        else:
            version, secret = node.version, _opened(node.value, keys)
            if keys is None or keys.is_current(node.value):
                return secret
            if not node.value.startswith(ENCRYPTED):
                log.warning("the secret of the cluster was not encrypted before: who has read it still knows it")
        content = secret.hex().encode() if keys is None else keys.encrypt(CLUSTER_SECRET_PATH, secret)
        if await store.commit(PutNode(CLUSTER_SECRET_PATH, content, version)) is not None:
            return secret


def _opened(content: bytes, keys: SecretKeys | None) -> bytes:
    if not content.startswith(ENCRYPTED):
        return _decoded(content)
    if keys is None:
        raise StartupError(
            "the secret of the cluster is encrypted: set broker.secrets_key_file to the key file of its other brokers"
        )
    return keys.decrypt(CLUSTER_SECRET_PATH, content)


def _decoded(content: bytes) -> bytes:
    try:
        secret = bytes.fromhex(content.decode())
    except ValueError as error:
        raise StorageFailure(f"metadata store: node {CLUSTER_SECRET_PATH} is damaged") from error
    if len(secret) < _MIN_BYTES:
        raise StorageFailure(f"metadata store: node {CLUSTER_SECRET_PATH} is too short")
    return secret
