"""The secret of the cluster: one for all brokers, whoever comes first."""

import asyncio
from uuid import uuid4

import pytest

from conveyor.broker.metadata.cluster_secret import CLUSTER_SECRET_PATH, cluster_secret
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import PutNode
from conveyor.testing.memory_store import MemoryTree


async def test_all_brokers_get_the_same_secret() -> None:
    tree = MemoryTree()
    sessions = [tree.open_session(2_000) for _ in range(5)]

    secrets = await asyncio.gather(*(cluster_secret(session, uuid4) for session in sessions))

    assert len(set(secrets)) == 1
    assert len(secrets[0]) == 32
    assert await cluster_secret(tree.open_session(2_000), uuid4) == secrets[0]


async def test_clusters_have_different_secrets() -> None:
    one = await cluster_secret(MemoryTree().open_session(2_000), uuid4)
    two = await cluster_secret(MemoryTree().open_session(2_000), uuid4)
    assert one != two


@pytest.mark.parametrize("content", [b"", b"abcd", b"no hexadecimal digits", b"\xff" * 64])
async def test_a_damaged_secret_is_not_used(content: bytes) -> None:
    store = MemoryTree().open_session(2_000)
    await store.commit(PutNode(CLUSTER_SECRET_PATH, content))

    with pytest.raises(StorageFailure, match="cluster-secret"):
        await cluster_secret(store, uuid4)
