"""Nothing that is kept names a machine, a package mirror, or work that was put off."""

import re
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT, shown, tracked_files

MACHINE_ROOTS = ("work", "home", "root", "Users")
MACHINE_PATH = re.compile(rf"(?<![\w.~$}}-])/({'|'.join(MACHINE_ROOTS)})/")
PUT_OFF = re.compile(r"\b(TODO|FIXME|XXX)\b")
REGISTRY = re.compile(r"://|\.pythonhosted\.|(?<!no-emit)-index-url|--find-links|--trusted-host")
QUIX = "tests/clients/python/quix"
LOCKED = ("requirements/dev.lock", "requirements/build.in", f"{QUIX}/requirements.txt", f"{QUIX}/requirements.in")
INSTALLERS = ("Makefile", ".ci/run", *LOCKED)


def found(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    """Where a pattern stands, as path:line. This file, which has to name what it looks for, is left out."""
    places = []
    for path in files:
        if path == Path(__file__):
            continue
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        places += [f"{shown(path)}:{number}" for number, line in enumerate(lines, 1) if pattern.search(line)]
    return places


@pytest.mark.parametrize("pattern", [MACHINE_PATH, PUT_OFF], ids=["machine path", "work put off"])
def test_no_file_has_it(pattern: re.Pattern[str]) -> None:
    assert not found(pattern, tracked_files())


def test_the_installers_leave_the_registry_to_the_machine() -> None:
    assert not found(REGISTRY, [ROOT / each for each in INSTALLERS])


@pytest.mark.parametrize("root", MACHINE_ROOTS)
def test_a_machine_path_is_told_from_others(root: str) -> None:
    assert all(MACHINE_PATH.search(f"{before}/{root}/x") for before in ("", "cd ", '"', "="))
    assert not any(MACHINE_PATH.search(f"{before}/{root}/x") for before in ("frame", "https://site.example", ".", "~"))
