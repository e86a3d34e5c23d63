"""Paths of the metadata tree."""

import pytest

from conveyor.kernel.store_paths import parents


@pytest.mark.parametrize(
    ("path", "above"), [("/a", []), ("/a/b", ["/a"]), ("/a/b/c", ["/a", "/a/b"]), ("/log/e/1", ["/log", "/log/e"])]
)
def test_parents_are_the_paths_above(path: str, above: list[str]) -> None:
    assert parents(path) == above
