"""Which partition of `__consumer_offsets` looks after a group."""


def partition_for_group(group_id: str, partition_count: int) -> int:
    """Kafka's rule: the absolute value of the name's Java hash (0 for the one that has none), modulo the count."""
    hashed = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >= 1 << 31 else hashed
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count
