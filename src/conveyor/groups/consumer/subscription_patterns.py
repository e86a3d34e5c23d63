"""Subscriptions by pattern: RE2's syntax, in which no pattern takes longer than the text is long."""

import re2

from conveyor.groups.known_topics import KnownTopics
from conveyor.kernel.errors import ErrorKind, RequestError


def check_pattern(pattern: str) -> None:
    """Raises RequestError (INVALID_REGULAR_EXPRESSION)."""
    try:
        re2.compile(pattern, _options())
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "it is not RE2 syntax"
        raise RequestError(
            ErrorKind.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex `{pattern}` is not valid: {reason}"
        ) from error


def matching_topics(pattern: str, topics: KnownTopics) -> frozenset[str]:
    """The topics whose whole name a pattern matches; the broker's own are not among them."""
    compiled = re2.compile(pattern, _options())
    return frozenset(
        name for name, topic in topics.by_name.items() if not topic.is_internal and compiled.fullmatch(name)
    )


def _options() -> "re2.Options":
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    return options
