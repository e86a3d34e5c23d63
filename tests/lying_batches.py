"""Record batches with a right length and a right CRC, whose insides need not be what they say.

`raw_record` and `sealed` make a batch of any parts, right or wrong. `LIES` has one batch for each way to lie, by name;
`any_batch` makes up others, most of them lying, from a random source.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from crc32c import crc32c

from conveyor.records import compression
from conveyor.records.batch import CRC_START, HEADER, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, MAGIC_END

NOW_MS = 1_700_000_000_000
BOMB_BYTES = 128 << 20

RawHeader = tuple[bytes | None, bytes | None]


def varint(number: int, width: int = 0) -> bytes:
    """A zig-zag varint. width: how many bytes it takes at least, more than it needs."""
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while rest > 0x7F or len(out) + 1 < width:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def raw_bytes(content: bytes | None, length: int | None = None) -> bytes:
    """A length and bytes. length: what is said instead of the truth."""
    if content is None:
        return varint(-1 if length is None else length)
    return varint(len(content) if length is None else length) + content


def raw_record(
    offset_delta: int = 0,
    *,
    timestamp_delta: int = 0,
    key: bytes | None = b"k",
    value: bytes | None = b"value",
    headers: Sequence[RawHeader] = (),
    header_count: int | None = None,
    key_length: int | None = None,
    value_length: int | None = None,
    length: int | None = None,
    tail: bytes = b"",
    width: int = 0,
) -> bytes:
    """One record with its length. Lengths and counts are the truth where they are None. tail: within its length."""
    fields = [b"\0", varint(timestamp_delta, width), varint(offset_delta, width), raw_bytes(key, key_length)]
    fields += [raw_bytes(value, value_length), varint(len(headers) if header_count is None else header_count, width)]
    fields += [raw_bytes(name) + raw_bytes(text) for name, text in headers]
    body = b"".join(fields) + tail
    return varint(len(body) if length is None else length) + body


def sealed(
    content: bytes,
    count: int,
    *,
    codec: int = compression.NONE,
    packed: bytes | None = None,
    fields: Mapping[str, int] | None = None,
) -> bytes:
    """A batch around records. packed: instead of what the codec makes of the content. fields: of `BatchHeader`."""
    body = compression.compress(codec, content) if packed is None else packed
    header = {
        "base_offset": 0, "batch_length": HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body), "leader_epoch": -1,
        "magic": MAGIC, "crc": 0, "attributes": codec, "last_offset_delta": count - 1, "base_timestamp": NOW_MS,
        "max_timestamp": NOW_MS, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "records_count": count,
    } | dict(fields or {})  # fmt: skip
    batch = bytearray(HEADER.pack(*header.values()) + body)
    batch[MAGIC_END:CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return bytes(batch)


DEDUP: RawHeader = (b"conveyor-dedup-id", b"known")
DELAY: RawHeader = (b"conveyor-delay-ms", b"1")


def _records(*deltas: int, headers: Sequence[RawHeader] = (DEDUP, DELAY)) -> bytes:
    return b"".join(raw_record(delta, headers=headers) for delta in deltas)


def _one(count: int = 1, /, **lies: object) -> bytes:
    return sealed(raw_record(headers=(DEDUP, DELAY), **lies), count)  # type: ignore[arg-type]


def _at(base_timestamp: int, delta: int) -> bytes:
    content = raw_record(headers=(DEDUP, DELAY), timestamp_delta=delta)
    return sealed(content, 1, fields={"base_timestamp": base_timestamp})


LIES: dict[str, bytes] = {
    "deltas 1 and 1": sealed(_records(1, 1), 2),
    "deltas 1 and 0": sealed(_records(1, 0), 2),
    "a negative delta": sealed(_records(-1, 1), 2),
    "a delta beyond the batch": sealed(_records(0, 5), 2),
    "a delta beyond 32 bits": sealed(_records(0, 1 << 33), 2),
    "one record of delta 7": sealed(_records(7), 1),
    "more records than it counts": sealed(_records(0, 1, 2), 2),
    "fewer records than it counts": sealed(_records(0, 1), 3),
    "bytes behind the records": sealed(_records(0, 1) + b"\0\0\0", 2),
    "records that are none": sealed(b"\xff" * 40, 2),
    "a record of no length": _one(length=0),
    "a record of negative length": _one(length=-3),
    "a record longer than its batch": _one(length=1 << 20),
    "a record shorter than its fields": _one(length=5),
    "a record longer than its fields": _one(tail=b"\0\0\0"),
    "a key longer than its batch": _one(key_length=1 << 30),
    "a value longer than its record": sealed(raw_record(0, value_length=15) + raw_record(1), 2),
    "a negative count of headers": _one(header_count=-1),
    "more headers than there are": _one(header_count=1 << 30),
    "fewer headers than there are": _one(header_count=1),
    "a header without a name": sealed(raw_record(headers=[DEDUP, (None, b"x")]), 1),
    "a number of six bytes": _one(width=6),
    "a number without an end": sealed(b"\x20" + b"\xff" * 32, 1),
    "a time beyond 64 bits": _at(1 << 62, 1 << 62),
    "a time before all": _at(-(1 << 62), -(1 << 62)),
    "gzip that does not unpack": sealed(b"", 2, codec=compression.GZIP, packed=b"conveyor-dedup-id"),
    "snappy that does not unpack": sealed(b"", 2, codec=compression.SNAPPY, packed=b"\xff\xff\xff\xff\x0f" * 9),
    "lz4 that does not unpack": sealed(b"", 2, codec=compression.LZ4, packed=b"conveyor-dedup-id"),
    "zstd that does not unpack": sealed(b"", 2, codec=compression.ZSTD, packed=b"conveyor-dedup-id"),
    "zstd with bytes behind its frame": sealed(
        b"", 2, codec=compression.ZSTD, packed=compression.compress(compression.ZSTD, _records(0, 1)) + b"conveyor"
    ),
    "packed records of deltas 1 and 1": sealed(_records(1, 1), 2, codec=compression.LZ4),
    "packed records and a count of a million": sealed(_records(0, 1), 1_000_000, codec=compression.ZSTD),
}
"""What a broker that looks at records refuses as INVALID_RECORD, and a plain topic stores."""


def bomb(codec: int, unpacked_bytes: int = BOMB_BYTES, marks: bytes = b"conveyor-dedup-id") -> bytes:
    """A small batch that unpacks to much, and names a header of the queues in it."""
    return sealed(marks + bytes(unpacked_bytes - len(marks)), 1, codec=codec)


def many_records(count: int, codec: int, headers: Sequence[RawHeader] = ()) -> bytes:
    """A batch of that many small records, none of them lying."""
    records = (raw_record(delta, key=b"k", value=b"", headers=headers) for delta in range(count))
    return sealed(b"".join(records), count, codec=codec)


def any_batch(random: Random) -> tuple[str, bytes]:
    """A batch and how it was made: a known lie, sound records, sound records with something changed, or noise."""
    maker = random.choices(_MAKERS, weights=[3, 2, 8, 1, 3])[0]
    return maker.__name__, maker(random)


def _known_lie(random: Random) -> bytes:
    return random.choice(list(LIES.values()))


def _sound(random: Random) -> bytes:
    count = random.randint(1, 5)
    content = b"".join(_some_record(random, delta) for delta in range(count))
    return sealed(content, count, codec=random.randrange(5), fields=_producer(random))


def _changed(random: Random) -> bytes:
    """Sound but for one to three wrong numbers in records, header, or packed bytes."""
    count = random.randint(1, 5)
    deltas = list(range(count))
    if random.random() < 0.3:
        deltas[random.randrange(count)] = _some_number(random)
    lies = [_some_lies(random) if random.random() < 0.4 else {} for _ in deltas]
    content = b"".join(_some_record(random, delta, **each) for delta, each in zip(deltas, lies, strict=True))
    if random.random() < 0.1:
        content += random.randbytes(random.randint(1, 9))
    codec = random.randrange(6) if random.random() < 0.5 else compression.NONE
    fields = _producer(random) | _some_fields(random)
    if codec > compression.ZSTD:
        return sealed(content, count, fields=fields | {"attributes": codec})
    packed = bytearray(compression.compress(codec, content))
    if codec and packed and random.random() < 0.3:
        packed[random.randrange(len(packed))] ^= 1 << random.randrange(8)
    return sealed(content, count, codec=codec, packed=bytes(packed), fields=fields)


def _noise(random: Random) -> bytes:
    packed = random.randbytes(random.randrange(80))
    return sealed(b"", random.randint(1, 9), packed=packed, fields={"attributes": random.randrange(5)})


def _flipped(random: Random) -> bytes:
    """Uncompressed records with a few wrong bits."""
    count = random.randint(1, 5)
    content = bytearray(b"".join(_some_record(random, delta) for delta in range(count)))
    for _ in range(random.randint(1, 4)):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return sealed(bytes(content), count)


_MAKERS: list[Callable[[Random], bytes]] = [_known_lie, _sound, _changed, _noise, _flipped]

_NUMBERS = (0, 1, -1, 2, 7, 63, 64, 127, 128, 1 << 14, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 62) - 1, 1 << 62,
            (1 << 63) - 1, -(1 << 63))  # fmt: skip
_NAMES = (b"conveyor-dedup-id", b"conveyor-delay-ms", b"conveyor-deliver-at-ms", b"conveyor-ttl-ms",
          b"conveyor-priority", b"conveyor-only-for", b"group", b"\xff\xfe", b"", None)  # fmt: skip
_TEXTS = (b"known", b"1", b"0", b"9223372036854775807", b"-1", b"\xff", b"", None, b"4611686018427387903", b"5s")


def _some_number(random: Random) -> int:
    return random.choice(_NUMBERS)


def _some_record(random: Random, delta: int, **lies: int) -> bytes:
    key = random.choice((b"a", b"b", b"", None))
    value = random.choice((b"value", b"", None, b"x" * 200))
    headers = [(random.choice(_NAMES), random.choice(_TEXTS)) for _ in range(random.randrange(3))]
    return raw_record(delta, key=key, value=value, headers=headers, **lies)  # type: ignore[arg-type]


def _some_lies(random: Random) -> dict[str, int]:
    name = random.choice(("timestamp_delta", "header_count", "key_length", "value_length", "length", "width"))
    return {name: random.randint(2, 11) if name == "width" else _some_number(random)}


def _producer(random: Random) -> dict[str, int]:
    if random.random() < 0.8:
        return {}
    return {"producer_id": random.randrange(3), "producer_epoch": 0, "base_sequence": random.choice((0, 1, 5, -1))}


_LIMITS = {"attributes": 1 << 15, "producer_epoch": 1 << 15, "magic": 1 << 7}
_INTS = ("last_offset_delta", "batch_length", "base_sequence", "records_count", "leader_epoch")


def _some_fields(random: Random) -> dict[str, int]:
    if random.random() < 0.6:
        return {}
    name = random.choice(
        ("base_timestamp", "max_timestamp", "last_offset_delta", "records_count", "attributes", "producer_id",
         "producer_epoch", "base_sequence", "magic", "base_offset", "leader_epoch", "batch_length")
    )  # fmt: skip
    number = _some_number(random)
    limit = 1 << 31 if name in _INTS else _LIMITS.get(name, 1 << 63)
    return {name: max(-limit, min(limit - 1, number))}
