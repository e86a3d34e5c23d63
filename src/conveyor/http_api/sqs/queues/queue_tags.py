"""The tags of a queue: names and values that a client keeps with it. Source: SQS developer guide, "Queue tags"."""

from collections.abc import Mapping

from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind, invalid_parameter

MAX_TAGS = 50
_MAX_KEY, _MAX_VALUE = 128, 256


def check_tags(tags: Mapping[str, str]) -> None:
    """Check tags that a request sets. Raises SqsError."""
    for key, value in tags.items():
        if not 1 <= len(key) <= _MAX_KEY:
            raise invalid_parameter("Tag keys must be between 1 and 128 characters in length.")
        if len(value) > _MAX_VALUE:
            raise invalid_parameter("Tag values must be between 0 and 256 characters in length.")
    check_tag_count(len(tags))


def check_tag_count(count: int) -> None:
    """Raise SqsError if a queue would have too many tags."""
    if count > MAX_TAGS:
        raise SqsError(SqsErrorKind.INVALID_PARAMETER_VALUE, f"Too many tags added for queue: at most {MAX_TAGS}.")
