"""Validation errors name the valid alternatives."""

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct, field

from conveyor.http.endpoints import type_errors
from conveyor.http.endpoints.type_errors import explain

Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]+$")]


class Part(Struct, forbid_unknown_fields=True):
    """A struct in a struct."""

    colour: Literal["red", "blue"] | None = None


class Whole(Struct, forbid_unknown_fields=True):
    """A document that refers to `Part` in every way."""

    part: Part | None = None
    parts: list[Part] = []
    named: dict[Name, Part | str | list[Part]] = {}
    place: Name | None = field(default=None, name="from")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"part": {"colour": "x"}}, ("Invalid enum value 'x': use one of blue, red", "`$.part.colour`")),
        ({"parts": [{}, {"colour": "x"}]}, ("Invalid enum value 'x': use one of blue, red", "`$.parts[1].colour`")),
        ({"named": {"a": [{"c": 1}]}}, ("Object contains unknown field `c`: use one of colour", "`$.named[...][0]`")),
        ({"c": 1}, ("Object contains unknown field `c`: use one of part, parts, named, from", "")),
        ({"from": "a b"}, ("Expected `str` of letters, digits, '.', '_' and '-'", "`$.from`")),
        ({"named": {"": {}}}, ("Expected `str` of letters, digits, '.', '_' and '-'", "`key` in `$.named`")),
        ({"parts": 1}, ("Expected `array`, got `int`", "`$.parts`")),
        (
            {"part": {"colour": " - at `$.parts`"}},
            ("Invalid enum value ' - at `$.parts`': use one of blue, red", "`$.part.colour`"),
        ),
    ],
)
def test_error_names_the_valid_alternatives(document: Any, problem: tuple[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(document, Whole)
    assert explain(Whole, raised.value) == problem


@pytest.mark.parametrize("document", [{" - at [": 1}, {" - at `$[": 1}, {"part": {"colour": " - at `$["}}])
def test_paths_in_texts_of_the_client_are_not_looked_up(document: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of 4 MiB could have four million steps."""
    looked_up: list[str] = []

    def places(_: object, where: str) -> list[Any]:
        looked_up.append(where)
        return []

    monkeypatch.setattr(type_errors, "_places", places)
    text = json.dumps(document).replace("[", "[" * 1_000)
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(text, type=Whole)
    explain(Whole, raised.value)
    assert looked_up in ([""], ["`$.part.colour`"])
