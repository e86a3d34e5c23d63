"""The declaration of a setting, and the parsing and checks of its value."""

import re
from dataclasses import Field, field
from math import isfinite
from typing import Any

from conveyor.kernel.errors import SettingsError

MAX_TEXT_CHARACTERS = 4_096
MAX_LIST_CHARACTERS = 32_767
"""Kafka's limit for any setting. Source: KAFKA-18020, `ConfigurationControlManager`."""

_SHOWN_CHARACTERS = 200

type_names = {int: "a whole number", str: "text", bool: "true or false", float: "a number"}


def setting(
    default: Any,
    doc: str,
    *,
    unit: str = "",
    kafka: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    is_list: bool = False,
    pattern: str = "",
    live: bool = False,
    is_secret: bool = False,
    of_cluster: bool = False,
) -> Any:
    """Declare one setting: its default, its meaning and its valid values.

    choices: all valid values, as text. is_list: the value is a list with commas, of the choices if there are any. It
    may be empty, unless `pattern` excludes that.
    pattern: matches the whole of a valid value; `unit` describes it in words. live: a change at run time takes effect
    at once; any other setting is read only at the start. is_secret: clients see no value but the default. of_cluster:
    the value belongs to the whole cluster; see `conveyor.cluster.cluster_defaults`.
    """
    metadata = {
        "doc": doc, "unit": unit, "kafka": kafka, "minimum": minimum, "maximum": maximum, "choices": choices,
        "is_list": is_list, "pattern": pattern, "live": live, "is_secret": is_secret,
        "of_cluster": of_cluster,
    }  # fmt: skip
    return field(default=default, metadata=metadata)


def parse(declared: "Field[Any]", value: object, *, label: str) -> object:
    """Turn a value from a flag, the environment or a file into the setting's type. Raises SettingsError."""
    wanted = type(declared.default)
    parsed = _convert(wanted, value)
    if parsed is None:
        raise SettingsError(f"setting '{label}' is {_shown(value)}: it takes {type_names[wanted]}")
    _check_range(declared, parsed, label)
    return parsed


def check_new_text(declared: "Field[Any]", text: str, *, label: str) -> None:
    """Check the form of a text from a client, which all brokers will keep. Raises SettingsError.

    `parse` checks its value. It also reads what earlier versions have stored: longer texts, and numbers with `_`.
    """
    limit = MAX_LIST_CHARACTERS if declared.metadata["is_list"] else MAX_TEXT_CHARACTERS
    if len(text) > limit:
        raise SettingsError(f"setting '{label}' has {len(text)} characters: it may have {limit}")
    if isinstance(declared.default, int | float) and "_" in text:
        raise SettingsError(f"setting '{label}' is {_shown(text)}: it takes {type_names[type(declared.default)]}")


def as_text(value: Any) -> str:
    """Return a setting's value as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _convert(wanted: type, value: object) -> object | None:
    if wanted is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return value if isinstance(value, bool) else words.get(str(value).strip().lower())
    if wanted is float:
        try:
            number = float("nan") if isinstance(value, bool) else float(str(value).strip())
        except ValueError:
            return None
        return number if isfinite(number) else None
    if wanted is int:
        try:
            return None if isinstance(value, bool | float) else int(str(value).strip().replace("_", ""))
        except ValueError:
            return None
    return value if isinstance(value, wanted) else None


def _check_range(declared: "Field[Any]", value: Any, label: str) -> None:
    minimum, maximum, choices = (declared.metadata[key] for key in ("minimum", "maximum", "choices"))
    unit = f" {declared.metadata['unit']}" if declared.metadata["unit"] else ""
    if minimum is not None and value < minimum:
        raise SettingsError(f"setting '{label}' is {value}: it must be at least {minimum}{unit}")
    if maximum is not None and value > maximum:
        raise SettingsError(f"setting '{label}' is {value}: it must be at most {maximum}{unit}")
    text = as_text(value)
    chosen = [text] if not declared.metadata["is_list"] else text.split(",") if text else []
    if choices and not set(chosen) <= set(choices):
        raise SettingsError(f"setting '{label}' is {_shown(value)}: it is one of {', '.join(choices)}")
    if not re.fullmatch(declared.metadata["pattern"] or ".*", text, re.DOTALL):
        raise SettingsError(f"setting '{label}' is {_shown(value)}: it takes{unit}")
