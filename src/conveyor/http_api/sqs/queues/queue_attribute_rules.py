"""The attributes of a queue that a client can set: their defaults, and the values that are valid.

Source: SQS API reference, CreateQueue and SetQueueAttributes.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind

VISIBILITY_TIMEOUT, DELAY_SECONDS, RETENTION = "VisibilityTimeout", "DelaySeconds", "MessageRetentionPeriod"
MAX_MESSAGE_SIZE, WAIT_TIME, FIFO = "MaximumMessageSize", "ReceiveMessageWaitTimeSeconds", "FifoQueue"
CONTENT_BASED, SCOPE, LIMIT = "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"
REDRIVE, REDRIVE_ALLOW, POLICY = "RedrivePolicy", "RedriveAllowPolicy", "Policy"
KMS_KEY, KMS_REUSE, SQS_KEY = "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled"

_READ_ONLY = frozenset(
    (
        "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed", "ApproximateNumberOfMessagesNotVisible",
        "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn",
    )
)  # fmt: skip
_FLAGS = frozenset((FIFO, CONTENT_BASED, SQS_KEY))
_MAX_TEXT = 20_000
"""Characters of a policy."""


class AttributeRule(NamedTuple):
    """is_valid: of the text of a value. default: of the queue; None if it has no value then. is_fifos: whether only
    FIFO queues have it. may_be_empty: an empty value removes it.
    """

    is_valid: Callable[[str], bool]
    default: str | None = None
    is_fifos: bool = False
    may_be_empty: bool = False


def _number(least: int, most: int, default: int | None) -> AttributeRule:
    def is_valid(text: str) -> bool:
        return text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most

    return AttributeRule(is_valid, None if default is None else str(default))


def _one_of(*choices: str, is_fifos: bool = True) -> AttributeRule:
    return AttributeRule(frozenset(choices).__contains__, choices[0], is_fifos)


def _text() -> AttributeRule:
    return AttributeRule(lambda text: len(text) <= _MAX_TEXT, may_be_empty=True)


RULES: Mapping[str, AttributeRule] = {
    DELAY_SECONDS: _number(0, 900, 0),
    MAX_MESSAGE_SIZE: _number(1024, 1 << 20, 1 << 20),
    RETENTION: _number(60, 1_209_600, 345_600),
    WAIT_TIME: _number(0, 20, 0),
    VISIBILITY_TIMEOUT: _number(0, 43_200, 30),
    POLICY: _text(),
    REDRIVE: _text(),
    REDRIVE_ALLOW: _text(),
    KMS_KEY: _text(),
    KMS_REUSE: _number(60, 86_400, None),
    SQS_KEY: _one_of("true", "false", is_fifos=False),
    FIFO: AttributeRule(frozenset(("true",)).__contains__, "true", True),
    CONTENT_BASED: _one_of("false", "true"),
    SCOPE: _one_of("queue", "messageGroup"),
    LIMIT: _one_of("perQueue", "perMessageGroupId"),
}
"""By name, in the order in which they are shown."""

SHOWN = frozenset(RULES) | _READ_ONLY
"""The names that a client can ask for."""


def read_attributes(given: Mapping[str, str] | None) -> dict[str, str]:
    """Return attributes of a request, with flags as they are stored: `True` is `true`."""
    return {name: value.lower() if name in _FLAGS else value for name, value in (given or {}).items()}


def check_attributes(given: Mapping[str, str], *, is_fifo: bool) -> None:
    """Check attributes of a request. Raises SqsError."""
    for name, value in given.items():
        rule = RULES.get(name)
        if rule is not None and name in (SCOPE, LIMIT) and not is_fifo:
            raise _invalid_name(f"You can specify the {name} only when FifoQueue is set to true.")
        if rule is None or (rule.is_fifos and not is_fifo):
            raise unknown_attribute(name)
        if not (rule.is_valid(value) or (rule.may_be_empty and not value)):
            raise invalid_value(name)
    if given.get(KMS_KEY) and given.get(SQS_KEY) == "true":
        raise _invalid_name(
            "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS"
            " SSE."
        )


def unknown_attribute(name: str) -> SqsError:
    """Return the error for an attribute that a queue cannot have."""
    return _invalid_name(f"Unknown Attribute {name[:100]}.")


def invalid_value(name: str, reason: str = "") -> SqsError:
    """Return the error for a value that an attribute cannot have."""
    why = f" Reason: {reason}" if reason else ""
    return SqsError(SqsErrorKind.INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}.{why}")


def _invalid_name(text: str) -> SqsError:
    return SqsError(SqsErrorKind.INVALID_ATTRIBUTE_NAME, text)
