"""Queries and bodies are parsed into the types that an endpoint declares. Errors say what is wrong."""

import json
from typing import Annotated

import pytest
from msgspec import Meta, Struct, field

from conveyor.http.endpoints.endpoint import NoBody, NoQuery
from conveyor.http.endpoints.request_reader import body_parser, query_reader
from conveyor.http_api.requests.durations import Duration
from conveyor.kernel.errors import RequestError


class Sought(Struct, forbid_unknown_fields=True):
    """A query with every kind of parameter."""

    place: str = field(default="earliest", name="from")
    limit: Annotated[int, Meta(ge=1, le=10)] = 5
    wait: Duration | None = None
    partition: int | None = None
    deep: bool = False
    header: list[str] = []


def read(*parameters: tuple[str, str]) -> Sought:
    values: dict[str, list[str]] = {}
    for name, value in parameters:
        values.setdefault(name, []).append(value)
    sought: Sought = query_reader(Sought)(values)
    return sought


def test_query_without_parameters_has_the_defaults() -> None:
    assert read() == Sought()


def test_query_is_parsed_by_type() -> None:
    sought = read(
        ("from", "17"), ("limit", "3"), ("wait", "5s"), ("deep", "true"), ("header", "a:1"), ("header", "b:2")
    )
    assert sought == Sought(place="17", limit=3, wait=Duration(5000), deep=True, header=["a:1", "b:2"])


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (
            [("limits", "3")],
            "^unknown query parameter 'limits': use one of deep, from, header, limit, partition, wait$",
        ),
        ([("limit", "3"), ("limit", "4")], "^query parameter 'limit' is given 2 times: give it once$"),
        ([("limit", "many")], "^query parameter 'limit': Expected `int`, got `str`$"),
        ([("limit", "0")], "^query parameter 'limit': Expected `int` >= 1$"),
        ([("partition", "null")], "^query parameter 'partition' is null: leave it out instead$"),
        ([("wait", "5")], "^query parameter 'wait': '5' is not a duration: write [^$]*$"),
    ],
)
def test_error_names_the_invalid_query_parameter(parameters: list[tuple[str, str]], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read(*parameters)


def test_query_without_declared_parameters_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^unknown query parameter 'a': this request takes none$"):
        query_reader(NoQuery)({"a": ["1"]})


@pytest.mark.parametrize("body", [b"", b"{}", b" { } "])
def test_undeclared_body_may_be_empty(body: bytes) -> None:
    assert body_parser(NoBody)(body) == NoBody()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"partition": 0}', "Object contains unknown field `partition`: this request takes none$"),
        (b"not json", "the request's body is not JSON: "),
        (b"null", "Expected `object`, got `null`$"),
    ],
)
def test_undeclared_body_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        body_parser(NoBody)(body)


def test_json_body_is_parsed_by_type() -> None:
    assert body_parser(Sought)(b'{"limit": 3, "wait": "5s"}') == Sought(limit=3, wait=Duration(5000))
    assert body_parser(Sought)(b"") == Sought()
    assert body_parser(bytes)(b"{") == b"{"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "^the request's body is not JSON: Input data was truncated$"),
        (b"\xff", "^the request's body is not JSON: "),
        (b"[]", "^in the request's body: Expected `object`, got `array`$"),
        (b'{"limit": "3"}', r"^in the request's body: Expected `int`, got `str` - at `\$\.limit`$"),
        (b'{"limit": -3}', r"^in the request's body: Expected `int` >= 1 - at `\$\.limit`$"),
        (b'{"wait": 5}', r"^in the request's body: 5 is not a duration: write .* - at `\$\.wait`$"),
        (
            b'{"colour": 1}',
            "^in the request's body: Object contains unknown field `colour`: use one of from, limit, .*, header$",
        ),
        (b'{"from": "\xff"}', "^the request's body is not JSON: "),
        (b'{"from": "\\ud800"}', "^the request's body is not JSON: "),
        (b"[" * 100_000, "^in the request's body: "),
        (b'{"wait": ' + b"[" * 2_000, "^the request's body is nested too deeply$"),
        (b'{"wait": [5]}', r"^in the request's body: Expected a text of at most 64 .*2h\. - at `\$\.wait`$"),
        (b'{"wait": "%b"}' % (b"5" * 65), r"^in the request's body: Expected a text of at most 64 .*wait`$"),
    ],
)
def test_error_names_the_invalid_field_of_a_body(body: bytes, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        body_parser(Sought)(body)


class Nested(Struct, forbid_unknown_fields=True):
    """A body with every kind of object."""

    name: str | None = None
    inner: "Nested | None" = None
    several: list["Nested"] = []
    free: dict[str, str | float | list[str]] = {}


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"name": "a", "name": "a"}', "name"),
        (b'{"name": "a", "n\\u0061me": "b"}', "name"),
        (b'{"inner": {"inner": {"name": null, "name": null}}}', "name"),
        (b'{"several": [{"name": "a"}, {"free": {"x": 1, "y": 2, "x": 3}}]}', "x"),
        (b'{"free": {"": "a", "": "b"}}', ""),
        (b'{"several": [], "inner": {}, "several": []}', "several"),
    ],
)
def test_name_that_is_given_twice_in_an_object_is_refused(body: bytes, name: str) -> None:
    with pytest.raises(RequestError, match=f"^in the request's body: the name '{name}' is given more than once in an"):
        body_parser(Nested)(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"free":{%b}}' % (b'"":9e306,' * 101),
        b'{"free":{"e":"","\\"":[],"\\\\":%b}}' % (b"5E-324" * 101),
        b'{"wait":[%b]}' % b",".join([b"9" * 4_299] * 100),
        b"{%b}" % b",".join([b'"name":"a"'] * 30_001),
        b"{" + b":" * 300_000,
    ],
)
def test_body_whose_decoding_takes_long_is_refused_before_it(body: bytes) -> None:
    """The slowest numbers take 16 us each; names that are repeated are refused only when all are decoded."""
    with pytest.raises(
        RequestError, match=r"^the request.s body has more than 90000 names and values, 262144 bytes be"
    ):
        body_parser(Nested)(body)


def test_numbers_with_exponents_are_counted_besides_literals_and_texts() -> None:
    numbers, literals = ",".join(f'"{place}e":9e306' for place in range(100)), ",".join(["true", "false"] * 100)
    with pytest.raises(RequestError, match="unknown field"):
        body_parser(Nested)(f'{{"wait":[{literals}],"free":{{{numbers}}}}}'.encode())


def test_error_for_a_repeated_name_quotes_its_beginning() -> None:
    name = "\x7f" * 65
    with pytest.raises(RequestError, match="is given more than once") as refusal:
        body_parser(Nested)(f'{{"free":{{"{name}":"","{name}":""}}}}'.encode())
    assert refusal.value.message.count("\\x7f") == 64


@pytest.mark.parametrize("indent", [None, 4])
def test_long_body_of_texts_and_few_numbers_is_parsed(indent: int | None) -> None:
    free = {f"{number}.e": number for number in range(10_000)} | {f"{number}": ['.,"\\'] * 5 for number in range(1_000)}
    body = json.dumps({"name": "name", "free": free}, indent=indent).encode()
    assert len(body_parser(Nested)(body).free) == 11_000


@pytest.mark.parametrize(
    "body",
    [
        b'{"name": "name", "inner": {"name": "n"}, "several": [{"name": "a"}, {"name": "a"}], "free": {"name": "a"}}',
        b'{"name": "\\"name\\": 1, \\"name\\": 2", "free": {"a": 1e300, "b": %s}}' % (b"1" * 300),
        b' {"name" :\n"\\u00e9\xc3\xa9" , "free":{"name":"","Name":""}} ',
    ],
)
def test_names_may_be_given_again_in_other_objects(body: bytes) -> None:
    assert body_parser(Nested)(body).name
