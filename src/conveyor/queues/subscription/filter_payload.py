"""A message's value as the JSON that a filter looks at, with what it will cost to decode.

The price is taken of the bytes of those fields that the filter names, before anything is made of them: commas, quotes,
colons and brackets bound how many values there can be. All other fields are skipped.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

_SCANNED_BYTE_NS = 4
_BYTE_NS = 3
_MARKS_NS = ((b",", 200), (b'"', 600), (b":", 600), (b"[", 1_200), (b"{", 1_200))
"""A string has two quotes; a field of an object a colon, beside its key and its value."""


class RawPayload:
    """The JSON of the fields that were found, or of the whole value (`whole`); None where it is not JSON."""

    __slots__ = ("_fields", "_whole", "elements", "weight_ns")

    def __init__(self, fields: Mapping[str, bytes] | None = None, whole: bytes | None = None) -> None:
        self._fields = fields
        self._whole = whole
        self.weight_ns = 0
        self.elements = 0
        for raw in (whole,) if fields is None else fields.values():
            self._weigh(raw or b"")

    def decode(self) -> object:
        try:
            if self._fields is not None:
                return {name: msgspec.json.decode(raw) for name, raw in self._fields.items()}
            return None if self._whole is None else msgspec.json.decode(self._whole)
        except (msgspec.MsgspecError, RecursionError):
            return None

    def _weigh(self, raw: bytes) -> None:
        counts = [(raw.count(mark), ns) for mark, ns in _MARKS_NS]
        self.elements += counts[0][0] + 1
        self.weight_ns += len(raw) * _BYTE_NS + sum(count * ns for count, ns in counts)


class PayloadReader:
    """Reads the payloads for one filter. fields: those that it names; None if it looks at the payload as a whole."""

    __slots__ = ("_decoder", "_names")

    def __init__(self, fields: Collection[str] | None) -> None:
        self._names = (
            None if fields is None else {f"field_{number}": name for number, name in enumerate(sorted(fields))}
        )
        self._decoder: msgspec.json.Decoder[Any] | None = None
        if self._names is not None:
            raw = (msgspec.Raw | msgspec.UnsetType, msgspec.UNSET)
            named = msgspec.defstruct("Payload", [(name, *raw) for name in self._names], rename=self._names)
            self._decoder = msgspec.json.Decoder(named)

    def scan_ns(self, value: bytes) -> int:
        """What `scan` costs at most, and to weigh what it finds."""
        return len(value) * _SCANNED_BYTE_NS

    def scan(self, value: bytes) -> RawPayload:
        """Find the fields. What is not an object has none, and is null to a filter that looks at nothing but fields."""
        if self._decoder is None or self._names is None:
            return RawPayload(whole=value)
        try:
            found = self._decoder.decode(value)
        except (msgspec.MsgspecError, RecursionError):
            return RawPayload()
        raws = {name: getattr(found, field) for field, name in self._names.items()}
        return RawPayload({name: bytes(raw) for name, raw in raws.items() if raw is not msgspec.UNSET})
