"""A message's value as JSON for a filter, with a bound on the cost of decoding it.

The cost is computed from the bytes of the fields that the filter names, before they are decoded: the counts of commas,
quotes, colons and brackets bound the number of values. All other fields are skipped.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

_SCANNED_BYTE_NS = 4
_BYTE_NS = 3
_MARKS_NS = ((b",", 200), (b'"', 600), (b":", 600), (b"[", 1_200), (b"{", 1_200))
"""A string has two quotes. A field of an object has a colon, besides its key and its value."""


class RawPayload:
    """The JSON of the named fields, or of the whole value (`whole`). Decodes to None if it is not JSON."""

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
    """Reads payloads for one filter. fields: the named fields; None if the filter reads the payload as a whole."""

    __slots__ = ("_decoder", "_names")

    def __init__(self, fields: Collection[str] | None) -> None:
        self._names = (
            None if fields is None else {f"field_{number}": name for number, name in enumerate(sorted(fields))}
        )
        self._decoder: msgspec.json.Decoder[Any] | None = None
        if self._names is not None:
            raw = (msgspec.Raw | msgspec.UnsetType, msgspec.UNSET)
            payload_type = msgspec.defstruct("Payload", [(name, *raw) for name in self._names], rename=self._names)
            self._decoder = msgspec.json.Decoder(payload_type)

    def scan_ns(self, value: bytes) -> int:
        """Return the highest cost of `scan` and of weighing its result, in ns."""
        return len(value) * _SCANNED_BYTE_NS

    def scan(self, value: bytes) -> RawPayload:
        """Extract the named fields. A value that is not a JSON object has none, and is null to a filter that reads
        only fields.
        """
        if self._decoder is None or self._names is None:
            return RawPayload(whole=value)
        try:
            payload = self._decoder.decode(value)
        except (msgspec.MsgspecError, RecursionError):
            return RawPayload()
        raws = {name: getattr(payload, field) for field, name in self._names.items()}
        return RawPayload({name: bytes(raw) for name, raw in raws.items() if raw is not msgspec.UNSET})
