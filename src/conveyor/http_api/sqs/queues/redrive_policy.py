"""The redrive policy of a queue: after how many receives a message moves to which dead-letter queue.

{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:orders-dead", "maxReceiveCount": 5}
"""

from dataclasses import dataclass

import msgspec

from conveyor.http_api.sqs.queues.queue_names import is_fifo_name, name_of_arn, queue_arn
from conveyor.http_api.sqs.sqs_errors import SqsError, invalid_parameter

_MAX_RECEIVES = 1_000
_TARGET, _COUNT = "deadLetterTargetArn", "maxReceiveCount"


@dataclass(frozen=True, slots=True)
class RedrivePolicy:
    """dead_letter_queue: its name."""

    dead_letter_queue: str
    max_receive_count: int


def parse_redrive_policy(text: str) -> RedrivePolicy | None:
    """Return the policy of an attribute; None if it is empty. Raises SqsError."""
    if not text:
        return None
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise _wrong(text, "Redrive policy is not a valid JSON map.")
    for name in (_TARGET, _COUNT):
        if name not in fields:
            raise invalid_parameter(f"The required parameter '{name}' is missing")
    target = name_of_arn(fields[_TARGET]) if isinstance(fields[_TARGET], str) else None
    if target is None:
        raise _wrong(text, "Invalid value for deadLetterTargetArn.")
    return RedrivePolicy(target, _count(text, fields[_COUNT]))


def format_redrive_policy(region: str, policy: RedrivePolicy) -> str:
    """Return the text of an attribute."""
    target = queue_arn(region, policy.dead_letter_queue)
    return msgspec.json.encode({_TARGET: target, _COUNT: policy.max_receive_count}).decode()


def shown_redrive_policy(text: str) -> str:
    """Return a valid text of an attribute as SQS shows it, with a number also where a client has sent its digits."""
    fields = msgspec.json.decode(text)
    if not isinstance(fields[_COUNT], str):
        return text
    return msgspec.json.encode({**fields, _COUNT: int(fields[_COUNT])}).decode()


def check_target(text: str, source: str, policy: RedrivePolicy, *, exists: bool) -> None:
    """Raise SqsError if a queue cannot be the dead-letter queue of a source. exists: whether it is there."""
    if not exists or policy.dead_letter_queue == source:
        raise _wrong(text, "Dead letter target does not exist.")
    if is_fifo_name(policy.dead_letter_queue) != is_fifo_name(source):
        raise _wrong(text, "Dead-letter queue must be same type of queue as the source.")


def _count(text: str, value: object) -> int:
    """Return a count, which may be a number or its text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_RECEIVES:
        raise _wrong(
            text,
            f"Invalid value for maxReceiveCount: {str(value)[:40]}, valid values are from 1 to 1000 both inclusive.",
        )
    return value


def _wrong(text: str, reason: str) -> SqsError:
    return invalid_parameter(f"Value {text[:500]} for parameter RedrivePolicy is invalid. Reason: {reason}")
