"""What is wrong with a value is told together with what would fit."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct, field

from conveyor.http_api.requests.type_errors import explain

Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]+$")]


class Part(Struct, forbid_unknown_fields=True):
    """A struct in a struct."""

    colour: Literal["red", "blue"] | None = None


class Whole(Struct, forbid_unknown_fields=True):
    """Every way to lead to a part."""

    part: Part | None = None
    parts: list[Part] = []
    named: dict[Name, Part | str | list[Part]] = {}
    place: Name | None = field(default=None, name="from")


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"part": {"colour": "x"}}, ("Invalid enum value 'x': known are blue, red", "`$.part.colour`")),
        ({"parts": [{}, {"colour": "x"}]}, ("Invalid enum value 'x': known are blue, red", "`$.parts[1].colour`")),
        ({"named": {"a": [{"c": 1}]}}, ("Object contains unknown field `c`: known are colour", "`$.named[...][0]`")),
        ({"c": 1}, ("Object contains unknown field `c`: known are part, parts, named, from", "")),
        ({"from": "a b"}, ("Expected `str` of letters, digits, '.', '_' and '-'", "`$.from`")),
        ({"named": {"": {}}}, ("Expected `str` of letters, digits, '.', '_' and '-'", "`key` in `$.named`")),
        ({"parts": 1}, ("Expected `array`, got `int`", "`$.parts`")),
    ],
)
def test_value_that_does_not_fit_is_told_what_would(document: Any, told: tuple[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(document, Whole)
    assert explain(Whole, raised.value) == told
