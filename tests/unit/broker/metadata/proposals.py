"""Proposals for tests: settings of groups, which may have any name."""

import pytest

from conveyor.broker.metadata.metadata import Metadata
from conveyor.cluster.changes import Change, ConfigPut, ProducerIdsTaken
from conveyor.cluster.image import ClusterImage, ConfigScope
from conveyor.cluster.metadata_log import (
    HEAD_PATH,
    decode_head,
)
from conveyor.kernel.errors import ErrorKind, RequestError
from tests.unit.broker.metadata.faulty_store import FaultyStore

Seen = list[tuple[ClusterImage, ClusterImage]]


def group(name: str, text: str = "x") -> ConfigPut:
    return ConfigPut(scope=ConfigScope.GROUPS, name=name, texts={"text": text})


async def put(metadata: Metadata, *names: str) -> ClusterImage:
    """Change the settings of these groups in one entry."""
    return await metadata.propose(lambda _: [group(name) for name in names])


def groups(image: ClusterImage) -> list[str]:
    return [name for _, name in image.configs]


def take_ten(image: ClusterImage) -> list[Change]:
    return [ProducerIdsTaken(next_producer_id=image.next_producer_id + 10)]


async def refused(metadata: Metadata, kind: ErrorKind, *changes: Change) -> RequestError:
    with pytest.raises(RequestError) as failed:
        await metadata.propose(lambda _: changes)
    assert failed.value.kind is kind
    return failed.value


async def head_seq(store: FaultyStore) -> int:
    head = await store.get(HEAD_PATH)
    return 0 if head is None else decode_head(head.value).seq
