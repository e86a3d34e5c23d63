"""Turns the distinguished name of a client's certificate into the name of its user, by rules in Kafka's syntax.

    DEFAULT                           the whole name
    RULE:pattern/replacement/[L|U]    if the pattern matches the whole name: the replacement, in lower or upper case

The first rule that matches decides. A replacement refers to groups as $1. Backslashes escape slashes. Patterns are
those of RE2, which needs linear time: they have no backreferences and no lookaround. Source: SslPrincipalMapper.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import re2

from conveyor.kernel.errors import SettingsError

PrincipalRule = Callable[[str], str | None]
"""Returns the name of the user; None if the rule does not match."""

_PART = r"((?:\\.|[^\\/])*)"
_RULE = re.compile(rf"\s*(?:(DEFAULT)|RULE:{_PART}/{_PART}/([LU]?)|)\s*(?:,|$)")
_REFERENCE = re.compile(r"\$(\d+)|\\(.)")
_LETTERS: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


def parse_principal_rules(text: str) -> list[PrincipalRule]:
    """Return the rules. Raises SettingsError for a rule that is none."""
    return list(_rules(text))


def _rules(text: str) -> Iterator[PrincipalRule]:
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise SettingsError(
                f"tls.principal_rules has no valid rule at {text[position:]!r}: a rule is DEFAULT or"
                " RULE:pattern/replacement/, with L or U at its end if the name shall have lower or upper case"
            )
        position = found.end()
        default, pattern, replacement, letters = found.groups()
        if default:
            yield str
        elif pattern is not None:
            yield _by_pattern(pattern, replacement, _LETTERS[letters])


def _by_pattern(pattern: str, replacement: str, change: Callable[[str], str]) -> PrincipalRule:
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise SettingsError(f"tls.principal_rules has the pattern {pattern!r}, which RE2 refuses: {reason}") from error

    def apply(name: str) -> str | None:
        match = compiled.fullmatch(name)
        return None if match is None else change(_REFERENCE.sub(lambda found: _part(found, match), replacement))

    return apply


def _part(found: re.Match[str], match: Any) -> str:
    """Return what stands for a reference or an escaped character. Digits that make too large a number are text."""
    if found[1] is None:
        return found[2]
    digits = found[1]
    for end in range(len(digits), 0, -1):
        if int(digits[:end]) <= match.re.groups:
            return (match[int(digits[:end])] or "") + digits[end:]
    return found[0]
