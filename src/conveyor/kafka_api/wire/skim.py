"""Checks, before a request is decoded, that every length in it fits into the frame, and counts its items.

kio's decoder allocates all items of an array before it reads the first, so an array that claims two billion items would
exhaust the process's memory. The check walks each request once by its schema and allocates nothing. An item is an
element of an array, at any depth, a tagged field, or a full KiB of a string: long names take what many short ones take.
The elements of an array whose work cannot be divided count as several items.

kio also refuses tagged fields that the schema does not have, which a receiver ignores (KIP-482). The walk finds them,
and `without_unknown_tags` can remove them from the frame.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from struct import Struct
from types import MappingProxyType, UnionType
from typing import Any, Protocol, get_args, get_origin

from conveyor.kafka_api.wire.packing import unsigned_varint
from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ports import Bytes

MAX_STRING_BYTES = 32_767
"""Kafka's limit. It holds in flexible versions too: a response of another version may have to contain the string."""

_STRING_ITEM_BYTES = 1 << 10

Room = list[int]
"""The number of further items that the request may have. Three positions follow for each tagged field that the schema
does not have: of the number of tagged fields in its entity, of the field, and of its end.
"""

Skip = Callable[[Bytes, int, Room], int]
"""Maps the position of a field to the position after the field: beyond the frame's end if the field does not fit."""

_NO_WEIGHTS: Mapping[str, int] = MappingProxyType({})
_NULL = 0xFF
_NULL_RECORDS = "a partition with null instead of records"
_HEADER_BYTES = 8
"""API key, version and correlation id. The client id follows."""
_INT16, _INT32 = Struct(">h"), Struct(">i")
_FIXED = {
    "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4, "uint32": 4,
    "timedelta_i32": 4, "int64": 8, "uint64": 8, "float64": 8, "timedelta_i64": 8, "datetime_i64": 8, "uuid": 16,
}  # fmt: skip


class TooManyItems(ProtocolViolation):
    """The request has more items than asked for, as far as it was checked."""


class Skim(Protocol):
    """Checks a frame, header included, and counts its items up to a maximum.

    unknown: receives the positions of tagged fields that the schema does not have, see `Room`.
    Raises ProtocolViolation: TooManyItems once it has counted more.
    """

    def __call__(self, frame: Bytes, most_items: int, unknown: Room) -> int: ...


def skimmer(schema: Any, weights: Mapping[str, int] = _NO_WEIGHTS) -> Skim:
    """Return the check of a schema's requests. weights: as how many items each element of some arrays counts."""
    steps = [_skip_bytes(_HEADER_BYTES), _skip_string]
    if schema.__header_schema__.__flexible__:
        steps.append(skip_tags)
    steps += _entity_steps(schema, weights)

    def skim(frame: Bytes, most_items: int, unknown: Room) -> int:
        position, room = 0, [most_items]
        try:
            for step in steps:
                position = step(frame, position, room)
        except (IndexError, ValueError, TypeError) as error:
            raise ProtocolViolation(f"{schema.__name__}: {error}") from error
        if position > len(frame):
            raise ProtocolViolation(f"{schema.__name__} reaches beyond its frame")
        unknown += room[1:]
        return most_items - room[0]

    return skim


def without_unknown_tags(frame: Bytes, position: int, unknown: Room) -> Bytes:
    """Return a frame without the tagged fields that a skim has found from this position on."""
    removed = [found for found in zip(*[iter(unknown)] * 3, strict=True) if found[0] >= position]
    if not removed:
        return frame
    edits = [(start, end, b"") for _, start, end in removed]
    for count_position, fewer in Counter(count_position for count_position, _, _ in removed).items():
        count, after_count = _varint(frame, count_position)
        edits.append((count_position, after_count, unsigned_varint(count - fewer)))
    parts: list[Bytes] = []
    position = 0
    for start, end, instead in sorted(edits):
        parts += frame[position:start], instead
        position = end
    return memoryview(b"".join([*parts, frame[position:]]))


def _entity_steps(schema: Any, weights: Mapping[str, int] = _NO_WEIGHTS) -> list[Skip]:
    flexible = bool(schema.__flexible__)
    steps: list[Skip] = []
    tags: dict[int, list[Skip]] = {}
    fixed = 0
    for field in fields(schema):
        kind = field.metadata.get("kafka_type", "")
        is_array = get_origin(without_none(field.type)) is tuple
        if "tag" in field.metadata:
            tags[field.metadata["tag"]] = _field_steps(field.type, kind, is_array, flexible)
            continue
        if kind in _FIXED and not is_array:
            fixed += _FIXED[kind]
            continue
        if fixed:
            steps.append(_skip_bytes(fixed))
            fixed = 0
        steps += _field_steps(field.type, kind, is_array, flexible, weights.get(field.name, 1))
    if fixed:
        steps.append(_skip_bytes(fixed))
    return [*steps, _skip_tags(tags) if tags else skip_tags] if flexible else steps


def _field_steps(annotation: Any, kind: str, is_array: bool, flexible: bool, weight: int = 1) -> list[Skip]:
    bare = without_none(annotation)
    if is_array:
        item = without_none(get_args(bare)[0])
        return [_skip_array(_item_steps(item, kind, flexible), flexible, weight, nullable=bare is not annotation)]
    if is_dataclass(bare) and bare is not annotation:
        return [_skip_nullable(_entity_steps(bare))]
    return _item_steps(bare, kind, flexible)


def _item_steps(item: Any, kind: str, flexible: bool) -> list[Skip]:
    if is_dataclass(item):
        return _entity_steps(item)
    if kind in _FIXED:
        return [_skip_bytes(_FIXED[kind])]
    if kind == "records":
        return [_skip_compact_records if flexible else _skip_records]
    if flexible:
        return [_skip_compact_string if kind == "string" else _skip_compact]
    return [_skip_string if kind == "string" else _skip_sized]


def _skip_bytes(count: int) -> Skip:
    return lambda _frame, position, _room: position + count


def _skip_string(frame: Bytes, position: int, room: Room) -> int:
    size = _int16(frame, position)
    if size >= _STRING_ITEM_BYTES:
        _take(room, size // _STRING_ITEM_BYTES)
    return position + 2 + max(0, size)


def _skip_sized(frame: Bytes, position: int, _room: Room) -> int:
    return position + 4 + max(0, _int32(frame, position))


def _skip_records(frame: Bytes, position: int, _room: Room) -> int:
    size = _int32(frame, position)
    if size < 0:
        raise ValueError(_NULL_RECORDS)
    return position + 4 + size


def _skip_compact_records(frame: Bytes, position: int, room: Room) -> int:
    if frame[position] == 0:
        raise ValueError(_NULL_RECORDS)
    return _skip_compact(frame, position, room)


def _skip_compact(frame: Bytes, position: int, _room: Room) -> int:
    short = frame[position]
    if short < 0x80:
        return position + (short or 1)
    length, position = _varint(frame, position)
    return position + max(0, length - 1)


def _skip_compact_string(frame: Bytes, position: int, room: Room) -> int:
    short = frame[position]
    if short < 0x80:
        return position + (short or 1)
    end = _skip_compact(frame, position, room)
    size = end - position
    if size > 3 + MAX_STRING_BYTES:
        raise ValueError(f"a string of more than {MAX_STRING_BYTES} bytes")
    if size >= _STRING_ITEM_BYTES:
        _take(room, size // _STRING_ITEM_BYTES)
    return end


def _skip_tags(known: Mapping[int, list[Skip]]) -> Skip:
    """Skip the tagged fields of an entity. known: how to skip those that its schema has. kio's decoder reads on where
    their content ends, so that has to be where their size says.
    """

    def skip(frame: Bytes, position: int, room: Room) -> int:
        if frame[position] == 0:
            return position + 1
        count_position = position
        count, position = _varint(frame, position)
        _take(room, count)
        for _ in range(count):
            start = position
            tag, position = _varint(frame, position)
            size, position = _varint(frame, position)
            end = position + size
            if tag not in known:
                room += count_position, start, end
                position = end
                continue
            for step in known[tag]:
                position = step(frame, position, room)
            if position != end:
                raise ValueError(f"tagged field {tag} of {size} bytes has another size")
        return position

    return skip


skip_tags = _skip_tags({})
"""Skips the tagged fields of an entity whose schema has none."""


def _skip_array(steps: list[Skip], flexible: bool, weight: int, *, nullable: bool) -> Skip:
    def skip(frame: Bytes, position: int, room: Room) -> int:
        if flexible and frame[position] < 0x80:
            count, position = frame[position] - 1, position + 1
        elif flexible:
            count, position = _varint(frame, position)
            count -= 1
        else:
            count, position = _int32(frame, position), position + 4
        if count > len(frame) - position:
            raise ValueError(f"an array of {count} items")
        if count < 0:
            if not nullable:
                raise ValueError("a null array where the schema allows none")
            return position
        _take(room, count * weight)
        for _ in range(count):
            for step in steps:
                position = step(frame, position, room)
        return position

    return skip


def _skip_nullable(steps: list[Skip]) -> Skip:
    """Skip a nullable entity, which begins with one byte: -1 for null."""

    def skip(frame: Bytes, position: int, room: Room) -> int:
        null = frame[position] == _NULL
        position += 1
        for step in () if null else steps:
            position = step(frame, position, room)
        return position

    return skip


def _take(room: Room, count: int) -> None:
    room[0] -= count
    if room[0] < 0:
        raise TooManyItems("the request has too many items")


def _int16(frame: Bytes, position: int) -> int:
    _check(frame, position + 2)
    number: int = _INT16.unpack_from(frame, position)[0]
    return number


def _int32(frame: Bytes, position: int) -> int:
    _check(frame, position + 4)
    number: int = _INT32.unpack_from(frame, position)[0]
    return number


def _check(frame: Bytes, end: int) -> None:
    if end > len(frame):
        raise ValueError("the frame ends too early")


def _varint(frame: Bytes, position: int) -> tuple[int, int]:
    byte = frame[position]
    if byte < 0x80:
        return byte, position + 1
    result, shift = byte & 0x7F, 7
    while byte >= 0x80:
        position += 1
        byte = frame[position]
        result |= (byte & 0x7F) << shift
        shift += 7
        if shift > 35:
            raise ValueError("a varint of more than five bytes")
    return result, position + 1


def without_none(annotation: Any) -> Any:
    """Return `X` for `X | None`."""
    if get_origin(annotation) is UnionType:
        return next(argument for argument in get_args(annotation) if argument is not type(None))
    return annotation
