"""Routing: to a batch's partition, to its inbox, or to the place that accepted it before."""

import pytest

from conveyor.broker.produce.routing import route
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.records.checked_batch import CheckedBatch, own_batch
from tests.unit.log.logs import NOW_MS, batch, idempotent_batch
from tests.unit.replication.parts import Owner

PLAIN = own_batch(batch(b"a"))


def idempotent(sequence: int) -> CheckedBatch:
    return own_batch(idempotent_batch(sequence, b"a"))


def test_batch_goes_to_its_partition() -> None:
    partition = Owner().partition
    assert route(partition, PLAIN.header) is partition


def test_batch_goes_to_the_inbox_if_there_is_one() -> None:
    topic, inbox = Owner().partition, Owner().partition
    topic.inbox = inbox
    assert route(topic, PLAIN.header) is inbox
    assert route(topic, idempotent(0).header) is inbox


def test_batch_that_the_topic_has_taken_before_goes_there_again() -> None:
    topic, inbox = Owner().partition, Owner().partition
    topic.append(idempotent(0), NOW_MS)
    topic.inbox = inbox
    assert route(topic, idempotent(0).header) is topic
    assert route(topic, idempotent(1).header) is inbox
    inbox.append(idempotent(1), NOW_MS)
    assert route(topic, idempotent(0).header) is inbox, "its producer has sent later batches"


def test_nothing_goes_to_a_partition_that_is_offline_or_whose_inbox_is() -> None:
    for number in (0, 1):
        both = Owner().partition, Owner().partition
        both[0].inbox = both[1]
        both[number].go_offline(StorageFailure("broken"))
        with pytest.raises(RequestError, match="broken") as refused:
            route(both[0], PLAIN.header)
        assert refused.value.kind is ErrorKind.PARTITION_OFFLINE
