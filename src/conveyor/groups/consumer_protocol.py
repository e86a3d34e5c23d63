"""What consumers of the classic protocol tell each other through the broker: subscriptions and assignments.

    subscription   version, topics, user data, ...      assignment   version, topics and partitions, user data

Source: ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json of Kafka.
"""

from conveyor.groups.record_fields import FieldReader
from conveyor.kernel.errors import StorageFailure

PROTOCOL_TYPE = "consumer"


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics that a member wants to read; None if that is not a subscription."""
    fields = FieldReader(subscription)
    try:
        fields.int16()
        return frozenset(fields.text() for _ in range(fields.array_length()))
    except (StorageFailure, UnicodeDecodeError):
        return None
