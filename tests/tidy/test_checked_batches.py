"""Only one module makes a `CheckedBatch`: so nothing that was not checked, or made by the broker, reaches a log."""

import ast

from tests.tidy.sources import CODE, modules, shown, tree

MAKER = "src/conveyor/records/checked_batch.py"
TYPE = "CheckedBatch"


def test_only_its_own_module_makes_a_checked_batch() -> None:
    found = {
        shown(path)
        for path in modules(*CODE)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and TYPE in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    }
    assert found == {MAKER}
