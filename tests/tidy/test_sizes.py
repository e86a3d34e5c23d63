"""Functions and files stay short: what is too long may only shrink."""

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.tidy.sources import CODE, PRODUCT, modules, shown, tree

LONGEST_FUNCTION = 70
LONGEST_FILE = 500
MEDIAN_FUNCTION = 10

TOO_LONG: dict[str, int] = {}
"""The exceptions, `path` or `path::function`, with their present lines: lower a number when its subject shrinks."""


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and lines of every function in a file, from `def` to its last line."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def too_long() -> dict[str, int]:
    found = {}
    for path in modules(*CODE):
        lines = len(path.read_text().splitlines())
        if lines > LONGEST_FILE:
            found[shown(path)] = lines
        found |= {f"{shown(path)}::{name}": size for name, size in functions(path) if size > LONGEST_FUNCTION}
    return found


def test_what_is_too_long_only_shrinks() -> None:
    found = too_long()
    grown = {name: size for name, size in found.items() if size > TOO_LONG.get(name, 0)}
    assert not grown, f"split these: functions have at most {LONGEST_FUNCTION} lines, files {LONGEST_FILE}"
    shrunk = {name: found.get(name) for name, size in TOO_LONG.items() if found.get(name, 0) < size}
    assert not shrunk, "write these smaller sizes into TOO_LONG (None: take the entry out)"


def test_the_median_function_is_short() -> None:
    sizes = [size for path in modules(*PRODUCT) for _, size in functions(path)]
    assert median(sizes) <= MEDIAN_FUNCTION
