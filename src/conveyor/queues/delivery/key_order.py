"""One unsettled message a key: the next one waits until the last is settled; other keys go on."""

from heapq import heappop, heappush


class _Line:
    """The messages of one key that stand in line behind the one that may go, a heap."""

    __slots__ = ("behind", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        self.behind: list[int] = []


class KeyOrder:
    """Which message of each key may be handed out. Messages without a key are not ordered."""

    def __init__(self) -> None:
        self._lines: dict[bytes, _Line] = {}
        self._keys: dict[int, bytes] = {}
        self.waiting_count = 0
        """Messages that stand in line behind others."""

    def admit(self, offset: int, key: bytes | None) -> bool:
        """Whether a message may be handed out now; if not, it stands in line, and `settled` brings it back."""
        if key is None:
            return True
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = _Line(offset)
            self._keys[offset] = key
            return True
        if line.first == offset:
            return True
        heappush(line.behind, offset)
        self.waiting_count += 1
        return False

    def is_behind(self, offset: int, key: bytes | None) -> bool:
        """Whether another message of its key goes first."""
        line = None if key is None else self._lines.get(key)
        return line is not None and line.first != offset

    def settled(self, offset: int) -> int | None:
        """A message that was first of its key is settled. Returns the one that may go now, if there is one."""
        key = self._keys.pop(offset, None)
        if key is None:
            return None
        line = self._lines[key]
        if not line.behind:
            del self._lines[key]
            return None
        line.first = heappop(line.behind)
        self._keys[line.first] = key
        self.waiting_count -= 1
        return line.first
