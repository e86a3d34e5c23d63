"""Encodes a large JSON document piece by piece: the encoder keeps the interpreter lock during a call."""

from typing import Any

import msgspec

_TEXT_SLICE = 64 << 10
"""Characters that are encoded at once, in up to a millisecond."""
_HAVE_TEXTS = frozenset((str, list, dict))
_ENCODER = msgspec.json.Encoder()
_encode = _ENCODER.encode


def encode_in_pieces(document: msgspec.Struct) -> bytes:
    """Encode a document item by item of its lists, and long texts slice by slice."""
    lists: dict[str, msgspec.Raw] = {}
    for name in document.__struct_fields__:
        items = getattr(document, name)
        if isinstance(items, list) and items:
            encoded = bytearray(b"[")
            for item in items:
                _ENCODER.encode_into(_with_encoded_texts(item), encoded, -1)
                encoded += b","
            encoded[-1:] = b"]"
            lists[name] = msgspec.Raw(encoded)
    return _encode(_with_encoded_texts(msgspec.structs.replace(document, **lists)))


def _with_encoded_texts(value: Any) -> Any:
    """Return a value whose long texts are encoded."""
    if isinstance(value, str):
        return value if len(value) <= _TEXT_SLICE else _encoded_text(value)
    if isinstance(value, list):
        return [_with_encoded_texts(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_encoded_texts(item) for name, item in value.items()}
    if isinstance(value, msgspec.Struct):
        parts = ((name, getattr(value, name)) for name in value.__struct_fields__)
        changed = {name: _with_encoded_texts(part) for name, part in parts if type(part) in _HAVE_TEXTS}
        return msgspec.structs.replace(value, **changed)
    return value


def _encoded_text(text: str) -> msgspec.Raw:
    encoded = bytearray(b'"')
    for start in range(0, len(text), _TEXT_SLICE):
        encoded += _encode(text[start : start + _TEXT_SLICE])[1:-1]
    encoded += b'"'
    return msgspec.Raw(encoded)
