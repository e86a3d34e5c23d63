"""`conveyor txn abort` and `abort-hanging`: ends transactions by force."""

import time
from typing import Annotated

import typer

from conveyor.cli.terminal.confirmation import Yes, confirm
from conveyor.cli.terminal.kafka_client import (
    DEFAULT_BOOTSTRAP,
    TIMEOUT_S,
    Bootstrap,
    ClientError,
    client_config,
    errors_in_one_line,
    unknown_partition_error,
)
from conveyor.cli.terminal.kafka_python import errors_of_kafka_python, kafka_python_admin
from conveyor.cli.transactions.hanging_transactions import hanging
from conveyor.cli.transactions.transaction_lookup import described_transaction, topic_places
from conveyor.transactions.transaction_value import TransactionState


def abort(
    transactional_id: Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort the open transaction of a transactional id, and fence its producer.

    The producer, if it still runs, fails with its next request. A transaction of two-phase commit is aborted too, even
    if the other database has committed it.

    \b
    Example:
      conveyor txn abort transfers
    """
    from confluent_kafka import Producer

    with kafka_python_admin(bootstrap) as admin:
        state = described_transaction(admin, transactional_id).state.value
    if state != TransactionState.ONGOING.kafka_name:
        raise ClientError(f"'{transactional_id}' has no open transaction: its state is {state}")
    confirm(f"abort the transaction of '{transactional_id}' and fence its producer?", yes)
    config = {"transactional.id": transactional_id, "transaction.timeout.ms": int(TIMEOUT_S * 1000)}
    with errors_in_one_line():
        Producer(client_config(bootstrap, **config)).init_transactions(TIMEOUT_S)
    typer.echo(f"aborted the transaction of {transactional_id}")


def abort_hanging(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    partition: Annotated[int, typer.Argument(min=0, metavar="PARTITION", help="The partition's number.")],
    start_offset: Annotated[int, typer.Argument(min=0, metavar="START-OFFSET", help="The transaction's first offset.")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort a hanging transaction in one partition; see find-hanging.

    Refuses a transaction that its coordinator knows.

    \b
    Example:
      conveyor txn abort-hanging orders 0 1234
    """
    from kafka import TopicPartition
    from kafka.admin import AbortTransactionSpec

    place = f"{topic}-{partition}"
    with kafka_python_admin(bootstrap) as admin, errors_of_kafka_python():
        if (topic, partition) not in (places := topic_places(admin, topic)):
            raise unknown_partition_error(topic, partition, len(places))
        found = hanging(admin, [(topic, partition)], int(time.time() * 1000) + 1)
        wanted = next((item for item in found if item.start_offset == start_offset), None)
        if wanted is None:
            raise ClientError(f"no hanging transaction begins at offset {start_offset} of {place}: see find-hanging")
        confirm(f"abort the transaction at offset {start_offset} of {place}?", yes)
        admin.abort_transaction(
            AbortTransactionSpec(
                topic_partition=TopicPartition(topic, partition),
                producer_id=wanted.producer_id,
                producer_epoch=wanted.producer_epoch,
                coordinator_epoch=max(0, wanted.coordinator_epoch),
            )
        )
    typer.echo(f"aborted the transaction at offset {start_offset} of {place}")
