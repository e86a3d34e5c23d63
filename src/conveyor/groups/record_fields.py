"""Fields of the records in `__consumer_offsets`: big-endian numbers, strings and bytes with their length in front."""

from struct import Struct, error

from conveyor.kernel.errors import StorageFailure

_INT16, _INT32, _INT64 = Struct(">h"), Struct(">i"), Struct(">q")
_NULL = -1


class FieldWriter:
    """Builds one key or value."""

    def __init__(self) -> None:
        self._out = bytearray()

    def int16(self, number: int) -> "FieldWriter":
        self._out += _INT16.pack(number)
        return self

    def int32(self, number: int) -> "FieldWriter":
        self._out += _INT32.pack(number)
        return self

    def int64(self, number: int) -> "FieldWriter":
        self._out += _INT64.pack(number)
        return self

    def string(self, text: str | None) -> "FieldWriter":
        if text is None:
            return self.int16(_NULL)
        encoded = text.encode()
        self.int16(len(encoded))
        self._out += encoded
        return self

    def sized(self, content: bytes) -> "FieldWriter":
        self.int32(len(content))
        self._out += content
        return self

    def done(self) -> bytes:
        return bytes(self._out)


class FieldReader:
    """Reads one key or value. `flexible` versions have compact lengths and tagged fields. Raises StorageFailure."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0
        self.flexible = False

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def array_length(self) -> int:
        return self._varint() - 1 if self.flexible else self.int32()

    def string(self) -> str | None:
        length = self._varint() - 1 if self.flexible else self.int16()
        return None if length < 0 else self._take(length).decode()

    def text(self) -> str:
        """A string that is never null."""
        return self.string() or ""

    def sized(self) -> bytes:
        return self._take(self._varint() - 1 if self.flexible else self.int32())

    def skip_tags(self) -> None:
        if self.flexible:
            for _ in range(self._varint()):
                self._varint()
                self._take(self._varint())

    def _number(self, layout: Struct) -> int:
        try:
            number: int = layout.unpack_from(self._content, self._position)[0]
        except error as cause:
            raise StorageFailure("a record of __consumer_offsets is cut") from cause
        self._position += layout.size
        return number

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._content):
            raise StorageFailure("a record of __consumer_offsets is cut")
        taken = self._content[self._position : end]
        self._position = end
        return taken

    def _varint(self) -> int:
        result = shift = 0
        while True:
            byte = self._take(1)[0]
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
