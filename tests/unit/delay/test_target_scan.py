"""How far the last intent was carried out, as the target's log tells."""

import pytest

from conveyor.delay.forwarding_records import Intent
from conveyor.delay.target_scan import carried_out
from conveyor.log.log import Log
from conveyor.records.record import encode_batch
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, append, batch, open_topic_log

FORWARDER, OTHER = 7, 8
LAST_SEQUENCE = 2**31 - 1


def intent(count: int, target_offset: int = 0, sequence: int = 0) -> Intent:
    return Intent(
        producer_id=FORWARDER,
        sequence=sequence,
        target_offset=target_offset,
        carried_out=0,
        ranges=((0, 1), (5, 4 + count)),
    )


def write(log: Log, producer_id: int, sequence: int, count: int) -> None:
    records = [(NOW_MS, None, b"x", ())] * count
    append(log, encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence))


@pytest.fixture
def target() -> Log:
    return open_topic_log(MemoryDisk())


def test_only_batches_of_the_forwarder_count(target: Log) -> None:
    assert carried_out(intent(9), target) == 0
    write(target, OTHER, 0, 5)
    append(target, batch(b"x"))
    assert carried_out(intent(9), target) == 0
    write(target, FORWARDER, 0, 2)
    write(target, OTHER, 5, 5)
    write(target, FORWARDER, 2, 3)
    assert carried_out(intent(9), target) == 5
    assert carried_out(intent(5), target) == 5


def test_earlier_intents_do_not_count(target: Log) -> None:
    write(target, FORWARDER, 0, 4)
    assert carried_out(intent(4, target_offset=4, sequence=4), target) == 0
    assert carried_out(intent(4, target_offset=4, sequence=0), target) == 0, "the target has forgotten the producer"
    write(target, FORWARDER, 4, 1)
    assert carried_out(intent(4, target_offset=4, sequence=4), target) == 1


def test_batch_of_an_earlier_sequence_is_of_no_intent(target: Log) -> None:
    """It is above the intent's offset, because an unclean election has taken both intents' records away."""
    write(target, FORWARDER, 4, 2)
    assert carried_out(intent(4, sequence=9), target) == 0
    write(target, FORWARDER, 6, 3)
    assert carried_out(intent(4, sequence=9), target) == 0
    write(target, FORWARDER, 9, 1)
    assert carried_out(intent(4, sequence=9), target) == 1


def test_sequences_begin_again_at_0(target: Log) -> None:
    write(target, FORWARDER, LAST_SEQUENCE - 1, 2)
    write(target, FORWARDER, 0, 3)
    assert carried_out(intent(9, sequence=LAST_SEQUENCE - 1), target) == 5


def test_end_of_the_target_before_the_intent(target: Log) -> None:
    """An election has cut off records of other producers that were not committed."""
    append(target, batch(b"x"))
    assert carried_out(intent(2, target_offset=9), target) == 0


def test_target_that_has_deleted_the_records_remembers_their_producer(target: Log) -> None:
    write(target, FORWARDER, 0, 1)
    write(target, FORWARDER, 1, 2)
    append(target, batch(b"x"))
    last = intent(9, target_offset=1, sequence=1)
    target.start.trim(4)
    assert carried_out(last, target) == 2
    assert carried_out(intent(9, target_offset=3, sequence=3), target) == 0, "its last batch is of an earlier intent"
    target.producers.expire(NOW_MS + 10**12)
    assert carried_out(last, target) == 0


def test_intent_without_records() -> None:
    last = Intent(producer_id=FORWARDER, sequence=0, target_offset=0, carried_out=3, ranges=())
    assert carried_out(last, open_topic_log(MemoryDisk())) == 0
