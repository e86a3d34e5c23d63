"""The partition of a message with a key: the same as from Kafka's Java producer, so that each key has one partition.

Source: org.apache.kafka.common.utils.Utils.murmur2, BuiltInPartitioner.partitionForKey.
"""

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_SHIFT = 24
_UINT32 = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def partition_for_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & _POSITIVE) % partition_count


def murmur2(content: bytes) -> int:
    """Return MurmurHash2 with Kafka's seed, as an unsigned 32-bit number."""
    size = len(content)
    whole = size & ~3
    hashed = _SEED ^ size
    for start in range(0, whole, 4):
        word = int.from_bytes(content[start : start + 4], "little") * _FACTOR & _UINT32
        word = (word ^ word >> _SHIFT) * _FACTOR & _UINT32
        hashed = hashed * _FACTOR & _UINT32 ^ word
    if whole < size:
        hashed = (hashed ^ int.from_bytes(content[whole:], "little")) * _FACTOR & _UINT32
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _UINT32
    return hashed ^ hashed >> 15
