"""The tags of a queue: names and values that a client keeps with it. Source: SQS developer guide, "Queue tags"."""

from collections.abc import Mapping

from conveyor.http_api.sqs.sqs_errors import invalid_parameter

MAX_TAGS = 50
_MAX_KEY, _MAX_VALUE = 128, 256


def check_tags(queue: str, tags: Mapping[str, str]) -> None:
    """Check tags that a request sets. Raises SqsError. queue: its name."""
    for key, value in tags.items():
        if not 1 <= len(key) <= _MAX_KEY:
            raise invalid_parameter("Tag keys must be between 1 and 128 characters in length.")
        if len(value) > _MAX_VALUE:
            raise invalid_parameter("Tag values must be between 0 and 256 characters in length.")
    check_tag_count(queue, len(tags))


def check_tag_count(queue: str, count: int) -> None:
    """Raise SqsError if a queue would have too many tags. queue: its name."""
    if count > MAX_TAGS:
        raise invalid_parameter(f"Too many tags added for queue {queue}.")
