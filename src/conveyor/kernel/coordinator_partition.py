"""The mapping from a group id or a transactional id to the internal topic's partition whose leader coordinates it."""

_HASHED_CHARACTERS = 1_024


def partition_for_key(key: str, partition_count: int) -> int:
    """Return Kafka's partition for a key: the absolute value of the key's Java hash, modulo the partition count.

    A hash of -2^31, which has no absolute value in 32 bits, counts as 0. Of a longer key than any real one, only
    the first 1,024 characters count: 32,767 would take 8 ms.
    """
    hashed = 0
    units = key[:_HASHED_CHARACTERS].encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >= 1 << 31 else hashed
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count
