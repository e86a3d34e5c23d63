"""Key ordering: at most one unsettled message of a key is deliverable; later messages of the key wait until it is
settled.
"""

from heapq import heappop, heappush


class _Line:
    """The messages of one key: the deliverable one, and a heap of those behind it."""

    __slots__ = ("behind", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        self.behind: list[int] = []


class KeyOrder:
    """Decides which message of each key is deliverable. Messages without a key are not ordered."""

    def __init__(self) -> None:
        self._lines: dict[bytes, _Line] = {}
        self._keys: dict[int, bytes] = {}
        self.waiting_count = 0
        """Messages that wait behind another message of their key."""

    def admit(self, offset: int, key: bytes | None) -> bool:
        """Return whether a message is deliverable now. If not, it waits until `settled` returns it."""
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
        """Return whether another message of the key comes first."""
        line = None if key is None else self._lines.get(key)
        return line is not None and line.first != offset

    def settled(self, offset: int) -> int | None:
        """Settle the first message of its key. Returns the next message of the key, if there is one."""
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
