"""Requests about transactions that several `conveyor txn` commands share."""

from typing import Any

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.cli.terminal.kafka_python import errors_of_kafka_python
from conveyor.cli.transactions.hanging_transactions import Place


def described_transaction(admin: Any, transactional_id: str) -> Any:
    """Return kafka-python's description of a transactional id. Raises ClientError."""
    from kafka.errors import TransactionalIdNotFoundError

    with errors_of_kafka_python():
        try:
            return admin.describe_transactions([transactional_id])[transactional_id]
        except TransactionalIdNotFoundError as error:
            raise ClientError(f"unknown transactional id '{transactional_id}': see 'conveyor txn list'") from error


def topic_places(admin: Any, topic: str | None) -> list[Place]:
    """Return the partitions of a topic, or of all topics. Raises ClientError for an unknown topic, and KafkaError."""
    topics = admin.describe_topics(None if topic is None else [topic])
    if topic is not None and topics[0]["error_code"]:
        raise ClientError(f"unknown topic '{topic}': see 'conveyor topic list'")
    return [(item["name"], number["partition_index"]) for item in topics for number in item["partitions"]]
