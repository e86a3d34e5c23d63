"""A key has the same partition as with Kafka's Java producer."""

import pytest

from conveyor.records.partitioner import murmur2, partition_for_key

# From UtilsTest.testMurmur2 of Apache Kafka.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("content", "hashed"), VECTORS.items())
def test_murmur2_is_kafkas(content: bytes, hashed: int) -> None:
    assert murmur2(content) == hashed & 0xFFFFFFFF


def test_partition_is_taken_from_the_positive_part_of_the_hash() -> None:
    assert partition_for_key(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7


def test_partition_of_a_key_is_within_the_topic() -> None:
    assert {partition_for_key(b"%d" % number, 3) for number in range(50)} == {0, 1, 2}
