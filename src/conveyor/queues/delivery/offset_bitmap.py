"""A set of offsets as bitmaps of blocks: compact if many offsets are near each other, as delayed messages are."""

_BLOCK_BITS = 12
_IN_BLOCK = (1 << _BLOCK_BITS) - 1


class OffsetBitmap:
    """See the module's docstring. A change copies the bitmap of a block; `first` looks at the number of each block."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}
        """The bitmaps that are not empty."""

    def __contains__(self, offset: int) -> bool:
        return bool(self._blocks.get(offset >> _BLOCK_BITS, 0) >> (offset & _IN_BLOCK) & 1)

    def add(self, offset: int) -> None:
        block = offset >> _BLOCK_BITS
        self._blocks[block] = self._blocks.get(block, 0) | 1 << (offset & _IN_BLOCK)

    def remove(self, offset: int) -> None:
        """Remove an offset, if it is a member."""
        block = offset >> _BLOCK_BITS
        bitmap = self._blocks.pop(block, 0) & ~(1 << (offset & _IN_BLOCK))
        if bitmap:
            self._blocks[block] = bitmap

    def first(self) -> int | None:
        """Return the lowest member."""
        if not self._blocks:
            return None
        block = min(self._blocks)
        bitmap = self._blocks[block]
        return (block << _BLOCK_BITS) + (bitmap & -bitmap).bit_length() - 1
