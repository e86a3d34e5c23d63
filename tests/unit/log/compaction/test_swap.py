"""Compacted segments take the others' place wholly or not at all, and so does what is known of how far that went."""

from random import Random

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.log.compaction.key_compaction import compact
from conveyor.testing import MemoryDisk
from tests.unit.log.compaction.test_key_compaction import TOPIC, compacted, everything, filled, keyed
from tests.unit.log.logs import NOW_MS, all_below, append, flush, open_topic_log
from tests.unit.log.power_switch import PowerSwitch


@pytest.mark.parametrize("operations", range(12))
def test_swap_that_was_interrupted_is_known_as_far_as_it_went(operations: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", b"1")), keyed((b"a", b"2")))
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 100)
    assert plan is not None
    job = log.compaction.begin_swap(compact(disk, plan))
    assert job is not None
    try:
        with PowerSwitch(disk, operations):
            job.run()
    except StorageFailure:
        log.abandon()
    reopened = open_topic_log(disk.power_cut(Random(operations)), TOPIC)
    is_compacted = [each.offset for each in everything(reopened)] == [1, 2]
    assert reopened.compaction.cleaned_offset == (2 if is_compacted else 0)


@pytest.mark.parametrize("operations", range(16))
def test_swap_that_has_removed_a_tombstone_tells_where_it_was(operations: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", None)), keyed((b"b", b"1")))
    compacted(disk, log)
    append(log, keyed((b"c", b"1")))
    append(log, keyed((b"last", bytes(1000))))
    flush(log)
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS + TOPIC.delete_retention_ms, 100)
    assert plan is not None
    job = log.compaction.begin_swap(compact(disk, plan))
    assert job is not None
    assert log.compaction.removed_end_offset == 1, "from now on"
    try:
        with PowerSwitch(disk, operations):
            job.run()
    except StorageFailure:
        log.abandon()
    survivor = disk.power_cut(Random(operations))
    reopened = open_topic_log(survivor, TOPIC)
    has_tombstone = any(each.value is None for each in everything(reopened))
    assert reopened.compaction.removed_end_offset == (0 if has_tombstone else 1)
    reopened.truncation.restart_at(0)
    truncation = reopened.truncation.begin(NOW_MS)
    assert truncation is not None
    reopened.truncation.complete(truncation, truncation.run())
    assert (reopened.compaction.removed_end_offset, open_topic_log(survivor, TOPIC).compaction.removed_end_offset) == (
        0,
        0,
    )
