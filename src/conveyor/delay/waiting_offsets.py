"""The offsets of a delayed topic whose records have not been forwarded: a bit for each offset, in groups of 256.

A group without members takes no memory, so the set costs little if most records are forwarded soon, and at most about
150 bytes for each record that waits alone in its group.
"""

from collections.abc import Iterator
from itertools import takewhile
from struct import Struct

_GROUP_BITS = 8
_GROUP = 1 << _GROUP_BITS
_LAST = _GROUP - 1
_FULL = (1 << _GROUP) - 1
_FEW = 32
_ENTRY = Struct(">qB")
_MASK_BYTES = _GROUP // 8
_IS_MASK = 255


class WaitingOffsets:
    """See the module's docstring. Every offset from `end_offset` on is a member, although it takes no memory yet."""

    __slots__ = ("_groups", "end_offset")

    def __init__(self) -> None:
        self.end_offset = 0
        self._groups: dict[int, int] = {}
        """The members of each group that has any, as bits. In ascending order: groups are only added at the end."""

    def __contains__(self, offset: int) -> bool:
        group = self._groups.get(offset >> _GROUP_BITS, 0)
        return offset >= self.end_offset or bool(group >> (offset & _LAST) & 1)

    @property
    def first(self) -> int:
        """The lowest member."""
        for number, group in self._groups.items():
            return (number << _GROUP_BITS) + _lowest_bit(group)
        return self.end_offset

    def extend(self, end_offset: int) -> None:
        """Raise `end_offset`: the offsets below it are stored from now on."""
        for number, bits in _parts(self.end_offset, end_offset):
            self._groups[number] = self._groups.get(number, 0) | bits
        self.end_offset = max(self.end_offset, end_offset)

    def remove(self, start: int, end: int) -> None:
        """Remove [start, end). Offsets that are not members are ignored."""
        self.extend(end)
        groups = self._groups
        for number, bits in _parts(start, end):
            group = groups.get(number, 0)
            if group & ~bits:
                groups[number] = group & ~bits
            elif group:
                del groups[number]

    def remove_below(self, offset: int) -> None:
        """Remove all offsets below one: their records are deleted."""
        groups = self._groups
        for number in list(takewhile(lambda number: number << _GROUP_BITS < offset, groups)):
            group = groups[number] & _bits_from(min(offset - (number << _GROUP_BITS), _GROUP))
            if group:
                groups[number] = group
            else:
                del groups[number]
        self.end_offset = max(self.end_offset, offset)

    def cut(self, offset: int) -> None:
        """Lower `end_offset`: all offsets from this one on are members again, and take no memory."""
        if offset >= self.end_offset:
            return
        self.end_offset, first = offset, offset >> _GROUP_BITS
        below = self._groups.get(first, 0) & ~_bits_from(offset & _LAST)
        self._groups = {number: group for number, group in self._groups.items() if number < first}
        if below:
            self._groups[first] = below

    def ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the members in [start, end) as ranges, in ascending order."""
        open_start = open_end = -1
        for number, bits in _parts(start, end):
            base = number << _GROUP_BITS
            stored = self._groups.get(number, 0)
            if base + _GROUP > self.end_offset:
                stored |= _bits_from(max(0, self.end_offset - base))
            members = stored & bits
            while members:
                low = _lowest_bit(members)
                high = low + _lowest_bit(~(members >> low))
                members &= _bits_from(high)
                if base + low != open_end:
                    if open_start >= 0:
                        yield open_start, open_end
                    open_start = base + low
                open_end = base + high
        if open_start >= 0:
            yield open_start, open_end

    def encoded(self) -> bytes:
        """Return the stored members: for each group its number int64, a count uint8, and so many uint8 places in the
        group; or the count 255 and a mask of 32 bytes. All numbers are big-endian.
        """
        parts = []
        for number, group in self._groups.items():
            count = group.bit_count()
            if count < _FEW:
                parts.append(_ENTRY.pack(number, count) + bytes(_places(group)))
            else:
                parts.append(_ENTRY.pack(number, _IS_MASK) + group.to_bytes(_MASK_BYTES, "big"))
        return b"".join(parts)

    @classmethod
    def decoded(cls, content: bytes, end_offset: int) -> "WaitingOffsets":
        """Return the set of a result of `encoded`."""
        waiting = cls()
        waiting.end_offset = end_offset
        position = 0
        while position < len(content):
            number, count = _ENTRY.unpack_from(content, position)
            position += _ENTRY.size
            size = _MASK_BYTES if count == _IS_MASK else count
            part = content[position : position + size]
            position += size
            is_mask = count == _IS_MASK
            waiting._groups[number] = int.from_bytes(part, "big") if is_mask else sum(1 << place for place in part)
        return waiting


def _lowest_bit(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _places(bits: int) -> Iterator[int]:
    while bits:
        yield _lowest_bit(bits)
        bits &= bits - 1


def _bits_from(place: int) -> int:
    return _FULL >> place << place


def _parts(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the groups of [start, end), and the bits of the range in each."""
    while start < end:
        number = start >> _GROUP_BITS
        base = number << _GROUP_BITS
        stop = min(end - base, _GROUP)
        yield number, _bits_from(start - base) & ((1 << stop) - 1)
        start = base + stop
