"""Encoding of the fields of records in Kafka's internal topics: big-endian numbers, length-prefixed strings and bytes.

Flexible versions use compact lengths (a varint of the length plus one) and end with tagged fields.
"""

from collections.abc import Mapping
from struct import Struct, error
from uuid import UUID

from conveyor.kernel.errors import StorageFailure

_INT8, _INT16, _INT32, _INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
_NULL = -1
_UUID_BYTES = 16
_VARINT_BITS = 35
"""A 32-bit number takes at most five bytes."""


class FieldWriter:
    """Builds one key or value."""

    def __init__(self, *, flexible: bool = False) -> None:
        self._out = bytearray()
        self._flexible = flexible

    def int8(self, number: int) -> "FieldWriter":
        self._out += _INT8.pack(number)
        return self

    def int16(self, number: int) -> "FieldWriter":
        self._out += _INT16.pack(number)
        return self

    def int32(self, number: int) -> "FieldWriter":
        self._out += _INT32.pack(number)
        return self

    def int64(self, number: int) -> "FieldWriter":
        self._out += _INT64.pack(number)
        return self

    def uuid(self, identity: UUID) -> "FieldWriter":
        self._out += identity.bytes
        return self

    def string(self, text: str | None) -> "FieldWriter":
        if text is None:
            return self.varint(0) if self._flexible else self.int16(_NULL)
        encoded = text.encode()
        if self._flexible:
            self.varint(len(encoded) + 1)
        else:
            self.int16(len(encoded))
        self._out += encoded
        return self

    def sized(self, content: bytes) -> "FieldWriter":
        self.array_length(len(content))
        self._out += content
        return self

    def array_length(self, count: int) -> "FieldWriter":
        return self.varint(count + 1) if self._flexible else self.int32(count)

    def tags(self, fields: Mapping[int, bytes] | None = None) -> "FieldWriter":
        """End a flexible struct with its tagged fields, in the order of their numbers."""
        fields = fields or {}
        self.varint(len(fields))
        for tag, content in sorted(fields.items()):
            self.varint(tag).varint(len(content))
            self._out += content
        return self

    def varint(self, number: int) -> "FieldWriter":
        while number >= 0x80:
            self._out.append(number & 0x7F | 0x80)
            number >>= 7
        self._out.append(number)
        return self

    def done(self) -> bytes:
        return bytes(self._out)


class FieldReader:
    """Reads one key or value. All methods raise StorageFailure if the content is truncated or malformed."""

    def __init__(self, content: bytes, *, flexible: bool = False) -> None:
        self._content = content
        self._position = 0
        self.flexible = flexible

    @property
    def position(self) -> int:
        """The number of bytes that have been read."""
        return self._position

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(_UUID_BYTES))

    def array_length(self) -> int:
        return self._varint() - 1 if self.flexible else self.int32()

    def string(self) -> str | None:
        length = self._varint() - 1 if self.flexible else self.int16()
        if length < 0:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as cause:
            raise StorageFailure("a record of an internal topic has a string that is not UTF-8") from cause

    def text(self) -> str:
        """Read a string that is never null."""
        return self.string() or ""

    def sized(self) -> bytes:
        return self._take(self._varint() - 1 if self.flexible else self.int32())

    def sized_or_none(self) -> bytes | None:
        """Read bytes that may be null, in a non-flexible version."""
        length = self.int32()
        return None if length < 0 else self._take(length)

    def texts(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.array_length()))

    def int32s(self) -> tuple[int, ...]:
        return tuple(self.int32() for _ in range(self.array_length()))

    def skip_tags(self) -> None:
        if self.flexible:
            self.tags()

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields at the end of a flexible struct, by number."""
        return {self._varint(): self._take(self._varint()) for _ in range(self._varint())}

    def _number(self, layout: Struct) -> int:
        try:
            number: int = layout.unpack_from(self._content, self._position)[0]
        except error as cause:
            raise StorageFailure("a record of an internal topic is truncated") from cause
        self._position += layout.size
        return number

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._content):
            raise StorageFailure("a record of an internal topic is truncated")
        content = self._content[self._position : end]
        self._position = end
        return content

    def _varint(self) -> int:
        result = 0
        for shift in range(0, _VARINT_BITS, 7):
            byte = self._take(1)[0]
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
        raise StorageFailure("a record of an internal topic has a number of more than five bytes")
