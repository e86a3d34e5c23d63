"""Where settings come from besides flags: the environment, and conveyor.toml. Both become flat maps of names."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from conveyor.kernel.errors import SettingsError
from conveyor.kernel.settings import Settings

PREFIX = "CONVEYOR_"
_CLIENTS_OWN = ("CONVEYOR_BOOTSTRAP",)


def environment_settings(environment: Mapping[str, str]) -> dict[str, object]:
    """`CONVEYOR_TOPICS_SEGMENT_BYTES=1` is `topics.segment_bytes`. Raises SettingsError for an unknown section."""
    found: dict[str, object] = {}
    for variable, value in environment.items():
        if variable.startswith(PREFIX) and variable not in _CLIENTS_OWN:
            section, _, name = variable.removeprefix(PREFIX).lower().partition("_")
            if section not in {each.name for each in fields(Settings)}:
                raise SettingsError(f"environment variable {variable} names no setting: sections are {_sections()}")
            found[f"{section}.{name}"] = value
    return found


def file_settings(path: Path, *, required: bool) -> dict[str, object]:
    """The tables of a TOML file; nothing if it is not there and not `required`. Raises SettingsError."""
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        if not required:
            return {}
        raise SettingsError(f"settings file {path} is not there: check --config") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"settings file {path} cannot be read: {error}") from error
    found: dict[str, object] = {}
    for section, table in document.items():
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: '{section}' stands outside a table: sections are {_sections()}")
        found |= {f"{section}.{name}": value for name, value in table.items()}
    return found


def _sections() -> str:
    return ", ".join(each.name for each in fields(Settings))
