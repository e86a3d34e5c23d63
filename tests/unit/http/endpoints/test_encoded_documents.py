"""Large documents are encoded in pieces, as they would be at once."""

from typing import Any

import pytest
from msgspec import UNSET, Struct, UnsetType
from msgspec import json as msgspec_json

from conveyor.http.endpoints import document_pieces
from conveyor.http.endpoints.document_pieces import encode_in_pieces


class Item(Struct):
    name: str
    count: int | None = None


class Page(Struct):
    items: list[Item]
    last: str
    others: list[str]


@pytest.mark.parametrize("items", [[], [Item("a")], [Item('"', 1), Item("\x01"), Item("c")]])
def test_large_document_is_encoded_as_any_other(items: list[Item]) -> None:
    for document in (Page(items, "b", ["x", "y"]), Item("\u20ac", 2)):
        assert encode_in_pieces(document) == msgspec_json.encode(document)


class Headed(Struct):
    text: str
    headers: dict[str, str | Item | list[str | None] | None]
    encoding: str | UnsetType = UNSET


@pytest.mark.parametrize("character", ["\0", '"', "\u20ac", "\U0001f600", "x"])
def test_long_texts_are_encoded_in_slices(monkeypatch: pytest.MonkeyPatch, character: str) -> None:
    """A control character takes six bytes and the time of many others."""
    longest = 0

    def note(value: Any) -> None:
        nonlocal longest
        if isinstance(value, str):
            longest = max(longest, len(value))
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            note(part)
        for name in value.__struct_fields__ if isinstance(value, Struct) else ():
            note(getattr(value, name))

    class Noting:
        def encode(self, value: Any) -> bytes:
            note(value)
            return msgspec_json.encode(value)

        def encode_into(self, value: Any, buffer: bytearray, offset: int) -> None:
            note(value)
            msgspec_json.Encoder().encode_into(value, buffer, offset)

    text = character * (3 * 65_536 + 5)
    item = Headed(text, {"a": text, "b": Item(text), "c": None, "d": ["x", None, text]}, text)
    monkeypatch.setattr(document_pieces, "_ENCODER", Noting())
    monkeypatch.setattr(document_pieces, "_encode", Noting().encode)
    for document in (item, Page([Item("a"), Item(text)], text, [text])):
        assert encode_in_pieces(document) == msgspec_json.encode(document)
    assert longest == 65_536
