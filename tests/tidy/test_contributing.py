"""What CONTRIBUTING.md names exists."""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_METHOD = re.compile(r"`([A-Z]\w+)\.([a-z]\w*)`")


def test_methods_that_contributing_names_exist() -> None:
    sources = "\n".join(path.read_text() for path in sorted((_ROOT / "src").rglob("*.py")))
    bodies: dict[str, str] = {}
    for found in re.finditer(r"^class (\w+)\b.*?(?=^\S|\Z)", sources, re.MULTILINE | re.DOTALL):
        bodies[found[1]] = bodies.get(found[1], "") + found[0]
    named = _METHOD.findall((_ROOT / "CONTRIBUTING.md").read_text())
    assert named
    assert [(name, method) for name, method in named if not re.search(rf"def {method}\b", bodies.get(name, ""))] == []
