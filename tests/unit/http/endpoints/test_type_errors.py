"""Validation errors name the valid alternatives."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct, field

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
    ],
)
def test_error_names_the_valid_alternatives(document: Any, problem: tuple[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(document, Whole)
    assert explain(Whole, raised.value) == problem
