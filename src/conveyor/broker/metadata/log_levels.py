"""The levels of the broker's loggers, changed at run time. Loggers belong to the process and outlive a broker.

A logger without a level inherits that of its parent: `conveyor.log` inherits from `conveyor`. `broker.log_level`
sets the level of `conveyor`. Levels have Kafka's names; Python has no TRACE.
"""

import logging

from conveyor.broker.services import Services
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.settings.tree import Settings

ROOT = "root"
_TOP = "conveyor"
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_NAMES = {level: name for name, level in _LEVELS.items() if name != "TRACE"}


class LogLevels:
    def __init__(self, services: Services) -> None:
        self._before: dict[str, int] = {}
        self._services = services
        self._given = services.settings.broker.log_level
        services.settings_changed.listen(self._settings_changed)

    def all(self) -> dict[str, str]:
        """Return the effective level of every logger, by name."""
        return {name: _name_of(_logger(name).getEffectiveLevel()) for name in (ROOT, *sorted(_known()))}

    def set(self, caller: Caller, name: str, level: str, *, check_only: bool = False) -> None:
        """Change a logger's level. Raises RequestError (INVALID_CONFIG)."""
        self._check_name(name)
        if level not in _LEVELS:
            raise RequestError(
                ErrorKind.INVALID_CONFIG, f"log level '{level}' of '{name}': it is one of {', '.join(_LEVELS)}"
            )
        if not check_only:
            self._set(name, _LEVELS[level])

    def clear(self, caller: Caller, name: str, *, check_only: bool = False) -> None:
        """Remove a logger's level, so that it inherits its parent's.

        Raises RequestError (INVALID_CONFIG, INVALID_REQUEST).
        """
        self._check_name(name)
        if name == ROOT:
            raise RequestError(ErrorKind.INVALID_REQUEST, "the root logger has no other above it: set its level")
        if not check_only:
            self._set(name, logging.NOTSET)

    def reset(self) -> None:
        """Restore the levels at the broker's start."""
        for name in list(self._before):
            self._restore(name)

    def _settings_changed(self, _: Settings) -> None:
        """Apply `broker.log_level`. If it is that of the start again, restore the level at the start."""
        level = self._services.settings.broker.log_level
        if level != self._given:
            self._set(_TOP, logging.getLevelNamesMapping()[level.upper()])
        elif _TOP in self._before:
            self._restore(_TOP)

    def _check_name(self, name: str) -> None:
        if name != ROOT and name not in _known():
            raise RequestError(ErrorKind.INVALID_CONFIG, f"there is no logger '{name}'")

    def _set(self, name: str, level: int) -> None:
        logger = _logger(name)
        self._before.setdefault(name, logger.level)
        logger.setLevel(level)

    def _restore(self, name: str) -> None:
        _logger(name).setLevel(self._before.pop(name))


def _known() -> set[str]:
    """Return the names of the broker's loggers and of their parents."""
    names = logging.getLogger().manager.loggerDict
    return {name for name in names if name == _TOP or name.startswith(f"{_TOP}.")}


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _name_of(level: int) -> str:
    """Return Kafka's name for a level, or for the next higher one."""
    return next((name for bound, name in sorted(_NAMES.items()) if level <= bound), "FATAL")
