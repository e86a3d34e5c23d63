"""Subscription patterns in RE2 syntax, whose matching time is linear in the length of the text."""

from typing import TYPE_CHECKING

from conveyor.groups.known_topics import KnownTopics
from conveyor.kernel.errors import ErrorKind, RequestError

if TYPE_CHECKING:
    import re2


def check_pattern(pattern: str) -> None:
    """Raise RequestError (INVALID_REGULAR_EXPRESSION) if a pattern is not valid."""
    import re2  # Brokers without patterns never load this package, here and below.

    try:
        re2.compile(pattern, _options())
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "it is not RE2 syntax"
        raise RequestError(
            ErrorKind.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex `{pattern}` is not valid: {reason}"
        ) from error


def matching_topics(pattern: str, topics: KnownTopics) -> frozenset[str]:
    """Return the topics whose whole name matches the pattern, without internal topics."""
    import re2

    compiled = re2.compile(pattern, _options())
    return frozenset(
        name for name, topic in topics.by_name.items() if not topic.is_internal and compiled.fullmatch(name)
    )


def _options() -> "re2.Options":
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    return options
