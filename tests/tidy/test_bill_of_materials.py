"""The bill of materials that `make package` writes is checked by what is locked."""

import json

import pytest

from tests.tidy.bill_of_materials import problems_of

LOCKED = """\
aiohttp==3.13.2 ; sys_platform != "nowhere" \\
    --hash=sha256:00
Foo_Bar==1.0 \\
    --hash=sha256:11 \\
    --hash=sha256:22
elsewhere==2.0 ; sys_platform == "nowhere" \\
    --hash=sha256:33
"""
COMPLETE = {"conveyor": "0.1", "aiohttp": "3.13.2", "foo-bar": "1.0"}


def bill(components: dict[str, str], kind: str = "CycloneDX") -> str:
    parts = [{"name": name, "version": version} for name, version in components.items()]
    return json.dumps({"bomFormat": kind, "specVersion": "1.6", "components": parts})


def test_complete_bill_is_accepted() -> None:
    assert problems_of(bill(COMPLETE), LOCKED) == []


@pytest.mark.parametrize(
    ("components", "problem"),
    [
        ({"foo-bar": "1.1"}, "foo-bar 1.0 is missing"),
        ({"pip": "25.0"}, "pip is not locked"),
        ({"conveyor": ""}, "conveyor is missing"),
    ],
)
def test_bill_that_differs_from_the_lock_is_refused(components: dict[str, str], problem: str) -> None:
    assert problems_of(bill(COMPLETE | components), LOCKED) == [problem]


def test_other_document_is_refused() -> None:
    assert problems_of(bill(COMPLETE, "SPDX"), LOCKED) == ["it is no document of CycloneDX"]
