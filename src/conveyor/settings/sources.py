"""Settings from the environment and from conveyor.toml, as flat maps by name. Flags are the third source."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from conveyor.kernel.errors import SettingsError
from conveyor.settings.tree import Settings

PREFIX = "CONVEYOR_"
FILE_VARIABLE = "CONVEYOR_CONFIG"
_NO_SETTINGS = ("CONVEYOR_BOOTSTRAP", "CONVEYOR_CLIENT_CONFIG", "CONVEYOR_TOKEN", FILE_VARIABLE)
FLAGS = (
    "broker.data_dir",
    "network.kafka",
    "network.http",
    "network.peer",
    "network.insecure",
    "network.token_file",
    "tls.cert_file",
    "tls.key_file",
    "broker.node_id",
    "broker.gateway",
    "broker.rack",
    "broker.metadata",
    "broker.workers",
    "broker.log_level",
)
"""Settings whose flag and environment variable omit the section: `--data-dir`, CONVEYOR_DATA_DIR."""


def environment_settings(environment: Mapping[str, str]) -> dict[str, object]:
    """Return the settings in the environment, by `section.name`.

    `CONVEYOR_TOPICS_SEGMENT_BYTES=1` sets `topics.segment_bytes`, `CONVEYOR_DATA_DIR=d` sets `broker.data_dir`.
    Raises SettingsError for an unknown section, or if both variables of one setting exist.
    """
    settings: dict[str, object] = {}
    short = {PREFIX + name.partition(".")[2].upper(): name for name in FLAGS}
    for variable, value in environment.items():
        if variable in short:
            name = short[variable]
            long = PREFIX + name.replace(".", "_").upper()
            if long in environment:
                raise SettingsError(f"environment variables {variable} and {long} both set {name}: remove one")
            settings[name] = value
        elif variable.startswith(PREFIX) and variable not in _NO_SETTINGS:
            section, _, name = variable.removeprefix(PREFIX).lower().partition("_")
            if section not in {section_field.name for section_field in fields(Settings)}:
                raise SettingsError(f"environment variable {variable} names no setting: sections are {_sections()}")
            settings[f"{section}.{name}"] = value
    return settings


def file_settings(path: Path, *, required: bool) -> dict[str, object]:
    """Return the settings in a TOML file; none if the file is missing and not `required`. Raises SettingsError."""
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        if not required:
            return {}
        raise SettingsError(f"settings file {path} does not exist: check --config") from error
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    import tomllib  # Compiles regular expressions, and most brokers have no such file.

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(path, error) from error
    settings: dict[str, object] = {}
    for section, table in document.items():
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: '{section}' stands outside a table: sections are {_sections()}")
        settings |= {f"{section}.{name}": value for name, value in table.items()}
    return settings


def _unreadable(path: Path, error: Exception) -> SettingsError:
    return SettingsError(f"settings file {path} cannot be read: {error}")


def _sections() -> str:
    return ", ".join(section_field.name for section_field in fields(Settings))
