"""The content of `replica-checkpoint`: what is damaged proves nothing."""

from uuid import UUID

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import TopicId
from conveyor.replication.replica_facts import DirectoryFacts, ReplicaFacts, ReplicaKey, decode_facts, encode_facts

FACTS = DirectoryFacts(
    incarnations=("a", "b"),
    cache_id="boot 1",
    is_clean=True,
    replicas=(ReplicaFacts(UUID(int=1), 0, 10, 7, True), ReplicaFacts(UUID(int=1), 3)),
)


def test_facts_are_read_as_they_were_written() -> None:
    assert decode_facts(encode_facts(FACTS)) == FACTS
    assert decode_facts(encode_facts(DirectoryFacts())) == DirectoryFacts()
    assert FACTS.replicas[1].key == ReplicaKey(TopicId(UUID(int=1)), 3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"version":0,"replicas":7}',
        b'{"version":0,"replicas":[["not a topic id",0]]}',
        b'{"version":0,"replicas":[["00000000-0000-0000-0000-000000000001",0,-1]]}',
        b'{"version":0,"replicas":[["00000000-0000-0000-0000-000000000001",-1]]}',
        b'{"version":"0"}',
        b'{"version":0,"incarnations":[1]}',
        b"\xff",
        b'{"version":0',
    ],
)
def test_content_that_nobody_has_written_is_damaged_even_if_its_checksum_is_right(content: bytes) -> None:
    assert decode_facts(content) is None


def test_newer_version_is_refused() -> None:
    with pytest.raises(StorageFailure, match="start a newer broker"):
        decode_facts(b'{"version":1,"something":"else"}')
