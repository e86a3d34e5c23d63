"""Durations are parsed with a unit, and refused without one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.http_api.requests.durations import Duration, format_duration
from conveyor.http_api.rest.lease_endpoints import Visibility, Wait
from conveyor.records.message_attributes import UNITS_MS


@pytest.mark.parametrize(
    ("text", "duration_ms"), [("0s", 0), ("1200ms", 1200), ("5s", 5_000), ("10m", 600_000), ("2h", 7_200_000)]
)
def test_duration_is_a_number_with_its_unit(text: str, duration_ms: int) -> None:
    assert Duration.parse(text) == duration_ms


@pytest.mark.parametrize("value", ["5", "", "s", "-5s", "1.5s", "5 s", "5d", "5S", "\u0665s", 5, None, True])
def test_invalid_duration_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ValueError, match="is not a duration: write a whole number and a unit, as in 1200ms, 5s"):
        Duration.parse(value)


@pytest.mark.parametrize(("kind", "longest", "too_long"), [(Wait, "20s", "20001ms"), (Visibility, "12h", "721m")])
def test_error_for_a_long_duration_names_the_maximum(kind: type[Duration], longest: str, too_long: str) -> None:
    assert kind.parse(longest) == kind.max_ms
    with pytest.raises(ValueError, match=f"^{too_long} is too long: at most {longest}$"):
        kind.parse(too_long)


@pytest.mark.parametrize("digits", [11, 20, 21, 5_000])
def test_any_long_number_is_too_long(digits: int) -> None:
    text = "9" * digits + "s"
    with pytest.raises(ValueError, match=f"^{text[:40]} is too long: at most 20s$"):
        Wait.parse(text)


@given(st.integers(0, 10**9), st.sampled_from(sorted(UNITS_MS)))
def test_formatted_duration_parses_to_the_same_value(count: int, unit: str) -> None:
    duration = Duration.parse(f"{count}{unit}")
    assert Duration.parse(format_duration(duration)) == duration
