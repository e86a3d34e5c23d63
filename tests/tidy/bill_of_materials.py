"""Checks the bill of materials of a release: `python -m tests.tidy.bill_of_materials conveyor.cdx.json locked.txt`.

It has to be a document of CycloneDX that has Conveyor and what is locked for its users, in these versions, and nothing
else. locked.txt: requirements with exact versions, as `uv pip compile` writes them.
"""

import json
import re
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

_REQUIREMENT = re.compile(r"^([^\s#-][^\\\n]*)", re.MULTILINE)


def main() -> None:
    bill, locked = (Path(argument).read_text() for argument in sys.argv[1:])
    if problems := problems_of(bill, locked):
        sys.exit("\n".join(problems))


def problems_of(bill: str, locked: str) -> list[str]:
    """Return what is wrong with a bill. Raises ValueError if it is no JSON."""
    document = json.loads(bill)
    if document.get("bomFormat") != "CycloneDX" or "specVersion" not in document:
        return ["it is no document of CycloneDX"]
    listed = {canonicalize_name(part["name"]): part["version"] for part in document.get("components", ())}
    wanted = locked_versions(locked)
    problems = [] if wanted else ["nothing is locked"]
    problems += [] if listed.pop(canonicalize_name("conveyor"), None) else ["conveyor is missing"]
    problems += [f"{name} {version} is missing" for name, version in wanted.items() if listed.get(name) != version]
    return problems + [f"{name} is not locked" for name in listed.keys() - wanted.keys()]


def locked_versions(locked: str) -> dict[NormalizedName, str]:
    """Return the versions of the packages that this machine installs."""
    requirements = map(Requirement, _REQUIREMENT.findall(locked))
    return {
        canonicalize_name(wanted.name): str(wanted.specifier).removeprefix("==")
        for wanted in requirements
        if wanted.marker is None or wanted.marker.evaluate()
    }


if __name__ == "__main__":
    main()
