"""The names, URLs and ARNs of queues. A queue is a topic and a subscription of one name."""

import re

from conveyor.broker.broker_node import BrokerNode
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind, invalid_parameter
from conveyor.kernel.errors import RequestError
from conveyor.queues.subscription.policy import Subscription

ACCOUNT = "000000000000"
"""The account of all queues."""
FIFO_SUFFIX = ".fifo"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_MAX_NAME = 80


def check_queue_name(name: str, *, is_fifo: bool) -> None:
    """Raise SqsError if a new queue cannot have a name."""
    if is_fifo and not name.endswith(FIFO_SUFFIX):
        raise invalid_parameter(
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or"
            " underscores, must end with .fifo suffix and be 1 to 80 in length."
        )
    stem = name.removesuffix(FIFO_SUFFIX) if is_fifo else name
    if _NAME.fullmatch(stem) is None or len(name) > _MAX_NAME:
        raise invalid_parameter("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")


def is_fifo_name(name: str) -> bool:
    return name.endswith(FIFO_SUFFIX)


def queue_name_of(url: str) -> str:
    """Return the name at the end of a queue's URL, or a name that a client gives in place of the URL."""
    return url.rstrip("/").rpartition("/")[2]


def queue_url(endpoint: str, name: str) -> str:
    """endpoint: scheme and host."""
    return f"{endpoint}/{ACCOUNT}/{name}"


def queue_arn(region: str, name: str) -> str:
    return f"arn:aws:sqs:{region}:{ACCOUNT}:{name}"


def name_of_arn(arn: str) -> str | None:
    """Return the name of the queue of an ARN, whatever its region and account; None for another text."""
    parts = arn.split(":")
    return parts[5] if len(parts) == 6 and parts[0] == "arn" and parts[2] == "sqs" and parts[5] else None


def existing_queue(broker: BrokerNode, name: str) -> Subscription:
    """Return the subscription of a queue. Raises SqsError: a subscription on a topic of another name is no queue."""
    try:
        found = broker.cluster.subscriptions.existing(name)
    except RequestError:
        found = None
    if found is None or found.topic != name:
        raise no_queue()
    return found


def no_queue() -> SqsError:
    """Return the error for a queue that does not exist."""
    return SqsError(SqsErrorKind.QUEUE_DOES_NOT_EXIST, "The specified queue does not exist.")
