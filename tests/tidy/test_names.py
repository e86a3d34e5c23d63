"""Modules are named for what they hold, and begin by saying what it is."""

import ast

from tests.tidy.sources import CODE, PRODUCT, ROOT, modules, shown, tree

SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


def test_no_module_has_a_name_that_says_nothing() -> None:
    found = [shown(path) for path in modules(*CODE) if SAY_NOTHING & {path.stem, path.parent.name}]
    assert not found


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in modules(*PRODUCT)}
    assert not [shown(each) for each in folders if not (each / "__init__.py").is_file()]


def test_every_module_says_what_it_owns() -> None:
    assert not [shown(path) for path in modules(*CODE, "examples") if not ast.get_docstring(tree(path))]


def test_every_unit_test_folder_mirrors_a_package() -> None:
    packages = {path.name for path in (ROOT / "src" / "conveyor").iterdir() if path.is_dir()}
    packages |= {"pyspark_conveyor", "simulation"}
    folders = {path.name for path in (ROOT / "tests" / "unit").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= packages
