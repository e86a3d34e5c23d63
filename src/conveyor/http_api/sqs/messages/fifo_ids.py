"""The ids of messages of a FIFO queue: their group, which is the key of the record, and their de-duplication id.

The broker de-duplicates within a partition. If a queue de-duplicates within message groups, several of which may be in
a partition, the header `conveyor-dedup-id` begins with the group and its length: `5:apple:` + `id-1`.

A purged queue takes the ids again that it has taken before. So the header begins with the number of purges and a space,
which no id has: `2 id-1`.
"""

import hashlib
from collections.abc import Iterable

from conveyor.http_api.sqs.protocols.message_operations import SendMessageBatchRequestEntry
from conveyor.http_api.sqs.queues.queue_attribute_rules import CONTENT_BASED, SCOPE
from conveyor.http_api.sqs.queues.stored_queue import PURGES, attribute_of
from conveyor.http_api.sqs.sqs_errors import invalid_parameter, missing_parameter
from conveyor.queues.subscription.policy import Subscription


def stored_dedup_id(queue: Subscription, group: str, dedup_id: str | None, body: str) -> str:
    """Return the header of a message. Raises SqsError if the queue needs an id, and there is none."""
    if not dedup_id:
        _check_needs_no_id(queue)
        dedup_id = hashlib.sha256(body.encode()).hexdigest()
    return _prefix(queue, group) + dedup_id


def shown_dedup_id(queue: Subscription, group: str, stored: str) -> str:
    """Return the id that a client has given, or that of another client's record."""
    return stored.removeprefix(_prefix(queue, group))


def _prefix(queue: Subscription, group: str) -> str:
    purges = f"{queue.annotations[PURGES]} " if PURGES in queue.annotations else ""
    return purges + (f"{len(group)}:{group}:" if attribute_of(queue, SCOPE) == "messageGroup" else "")


def needed_group(group: str | None) -> str:
    """Return the group of a message of a FIFO queue. Raises SqsError."""
    if not group:
        raise missing_parameter("MessageGroupId")
    return group


def check_batch_ids(queue: Subscription, entries: Iterable[SendMessageBatchRequestEntry]) -> None:
    """Raise SqsError if a message of a batch lacks an id that a FIFO queue needs: the batch fails as a whole."""
    for entry in entries:
        if entry.message_group_id is None:
            raise invalid_parameter("The request must contain the parameter MessageGroupId.")
        if entry.message_deduplication_id is None:
            _check_needs_no_id(queue)


def _check_needs_no_id(queue: Subscription) -> None:
    if attribute_of(queue, CONTENT_BASED) != "true":
        raise invalid_parameter(
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided"
            " explicitly"
        )
