"""The coordinating partition of a group is the same as in Kafka."""

import pytest

from conveyor.kernel.coordinator_partition import partition_for_key


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("Hello World", -862_545_276),
        ("ä", 228),
        ("\N{GRINNING FACE}", 0xD83D * 31 + 0xDE00),
    ],
)
def test_partition_is_the_absolute_java_hash_modulo_the_count(group_id: str, java_hash: int) -> None:
    assert [partition_for_key(group_id, count) for count in (1, 8, 50)] == [
        abs(java_hash) % count for count in (1, 8, 50)
    ]


def test_of_long_keys_a_part_counts() -> None:
    assert partition_for_key("a" * 30_000, 50) == partition_for_key("a" * 1_024 + "b", 50)
    assert partition_for_key("a" * 1_023 + "b", 50) != partition_for_key("a" * 1_024, 50)


def test_hash_without_an_absolute_value_goes_to_partition_zero() -> None:
    """Java's `"polygenelubricants".hashCode()` is the smallest integer there is."""
    assert partition_for_key("polygenelubricants", 50) == 0
