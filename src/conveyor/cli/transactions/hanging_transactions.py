"""Hanging transactions: open in a partition, but not in their coordinator, so that no timeout ends them (KIP-664).

Consumers of committed records do not read beyond a hanging transaction.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

Place = tuple[str, int]


class OpenInPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that is open in a partition. last_ms: when its producer last sent a batch there.

    coordinator_epoch: of the producer's last marker; -1 without one.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_ms: int


def hanging(admin: Any, places: Iterable[Place], last_before_ms: int) -> list[OpenInPartition]:
    """Return the hanging transactions in partitions whose last batch is older than a time in ms. Raises KafkaError.

    A transaction that begins or ends meanwhile is not taken for a hanging one: the partitions are asked again after the
    coordinators.
    """
    wanted = sorted(places)
    before = {found for found in _open(admin, wanted) if found.last_ms < last_before_ms}
    if not before:
        return []
    coordinated = _coordinated(admin, {found.producer_id for found in before})
    unknown = {found for found in before if (found.producer_id, found.topic, found.partition) not in coordinated}
    return [found for found in _open(admin, wanted) if found in unknown]


def _open(admin: Any, places: Iterable[Place]) -> Iterator[OpenInPartition]:
    from kafka import TopicPartition

    described = admin.describe_producers([TopicPartition(*place) for place in places])
    for place, state in sorted(described.items()):
        for producer in state.active_producers:
            if producer.current_transaction_start_offset >= 0:
                yield OpenInPartition(
                    topic=place.topic,
                    partition=place.partition,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    coordinator_epoch=producer.coordinator_epoch,
                    start_offset=producer.current_transaction_start_offset,
                    last_ms=producer.last_timestamp,
                )


def _coordinated(admin: Any, producer_ids: set[int]) -> set[tuple[int, str, int]]:
    """Return the producer ids and partitions of the transactions that coordinators know."""
    listed = admin.list_transactions(producer_id_filters=sorted(producer_ids))
    names = [listing.transactional_id for listings in listed.values() for listing in listings]
    return {
        (transaction.producer_id, place.topic, place.partition)
        for transaction in admin.describe_transactions(names).values()
        for place in transaction.topic_partitions
    }
