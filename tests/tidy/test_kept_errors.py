"""A caught RequestError that is kept as a result is detached from frames: see `RequestError.detached`."""

import ast
from collections.abc import Iterator

from tests.tidy.sources import modules, shown, tree


def test_errors_that_are_kept_as_results_are_detached() -> None:
    found = [
        f"{shown(path)}:{handler.lineno}"
        for path in modules("src/conveyor")
        for handler in ast.walk(tree(path))
        if isinstance(handler, ast.ExceptHandler) and isinstance(handler.type, ast.Name)
        if handler.type.id == "RequestError" and handler.name
        for statement in ast.walk(handler)
        if any(keeps(value, handler.name) for value in kept(statement))
    ]
    assert found == [], "\n".join(found)


def kept(statement: ast.AST) -> Iterator[ast.expr]:
    """Yield the values that a statement returns, assigns or appends."""
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.Return) and statement.value is not None:
        yield statement.value
    if isinstance(statement, ast.Call) and isinstance(statement.func, ast.Attribute):
        yield from statement.args if statement.func.attr in ("append", "reply") else ()


def keeps(value: ast.AST, name: str) -> bool:
    """Return whether a value has the error itself: not a part of it, nor the result of a function."""
    if isinstance(value, ast.Name):
        return value.id == name
    if isinstance(value, ast.Call):
        return any(keeps(keyword.value, name) for keyword in value.keywords)
    return not isinstance(value, ast.Attribute) and any(keeps(part, name) for part in ast.iter_child_nodes(value))
