"""A delayed topic is a list with times: whatever is produced, cancelled, deleted, flushed or crashed, each record comes
into the target once, and not before its transaction is committed. The target has other writers, and deletes records.

PROPERTY_EXAMPLES in the environment says how many such stories are told; 300 by default.
"""

import os
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.checked_batch import own_batch
from conveyor.records.message_attributes import DELIVER_AT_MS
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import append_marker, last_stable_offset
from conveyor.replication.trimming import retain
from conveyor.settings.tree import TopicSettings
from conveyor.testing import ManualClock, MemoryDisk
from tests.properties.forwarding_machine import DELAYED, STATE, TARGET, Machine, records
from tests.unit.replication.parts import led

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "300"))
SEEDS = st.integers(0, 2**32 - 1)
pytestmark = pytest.mark.timeout(max(600, EXAMPLES))
DELAYS_MS = st.lists(st.sampled_from([0, 0, -5, 1, 20, 20, 300]), min_size=1, max_size=4)
SIDES = st.sampled_from([TARGET, DELAYED, STATE])
AT_ONCE = 0
DIRECT_PRODUCERS = (6, 7)
"""They write to the target, in transactions."""


class EachRecordIsForwardedOnce(RuleBasedStateMachine):
    """The forwarder under test, and what must come out of it: value -> when it is due."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.due: dict[bytes, int] = {}
        self.promised: dict[bytes, int] = {}
        self.cancelled: set[bytes] = set()
        self.perhaps_cancelled: set[bytes] = set()
        self.out: set[bytes] = set()
        self.offsets: dict[bytes, int] = {}
        """Where each record came into the target, also if it was deleted there since."""
        self.excused: set[bytes] = set()
        """The records deleted before they were due, and those that a target without `flush.policy=ack` may have lost.
        """
        self.others: dict[bytes, int] = {}
        """The committed records of other writers of the target."""
        self.permitted: set[bytes] = set()
        """The records outside of transactions, and those of transactions that commit."""
        self.open: dict[int, dict[bytes, int]] = {}
        """The records of each producer's open transaction, and their offsets in the delayed topic."""
        self.deciding: dict[int, bool] = {}
        """The outcomes of transactions whose markers may still be lost."""
        self.latest_ms = self.clock.now_ms()
        """The latest time that the wall clock has shown."""

    @initialize(
        segment_bytes=st.sampled_from([300, 1 << 20]),
        flush_policy=st.sampled_from(["ack", "ack", "os"]),
        at_once=st.sampled_from([1, 3, 1000]),
    )
    def begin(self, segment_bytes: int, flush_policy: str, at_once: int) -> None:
        self.at_once = at_once
        self.settings = TopicSettings(segment_bytes=segment_bytes, flush_policy=flush_policy)
        self.machine = Machine(MemoryDisk(), self.clock, self.settings, self.at_once)

    @rule(delays_ms=DELAYS_MS, producer_id=st.sampled_from([None, 1, 2]))
    def produce(self, delays_ms: list[int], producer_id: int | None) -> None:
        if producer_id in self.deciding:  # A coordinator lets the next transaction wait for the marker.
            return
        now_ms = self.clock.now_ms()
        records = []
        for delay_ms in delays_ms:
            value = b"%d" % len(self.due)
            due_ms = now_ms + delay_ms if delay_ms else AT_ONCE
            headers = [(DELIVER_AT_MS, b"%d" % due_ms)] if due_ms else []
            records.append((now_ms, None, value, headers))
            self.due[value] = due_ms
        delayed, values = self.machine.delayed, [record[2] for record in records]
        if producer_id is not None:
            batch = encode_batch(records, **transactional(producer_id, next_sequence(delayed, producer_id)))
            info = delayed.append(own_batch(batch), now_ms)
            own = self.open.setdefault(producer_id, {})
            own.update({value: info.first_offset + place for place, value in enumerate(values)})
            return
        self.permitted.update(values)
        info = delayed.append(own_batch(encode_batch(records)), now_ms)

        def safe(error: RequestError | None) -> None:
            if error is None:
                self.promised.update({value: info.first_offset + place for place, value in enumerate(values)})

        self.machine.delayed.term.when_committed(info.last_offset + 1, safe)

    @rule(producer_id=st.sampled_from([1, 2]), commit=st.booleans())
    def end_transaction(self, producer_id: int, commit: bool) -> None:
        own = self.open.pop(producer_id, None)
        if own is None:
            return
        if commit:
            self.permitted.update(own)
        self.deciding[producer_id] = commit
        self._decide(producer_id, own)

    def _decide(self, producer_id: int, own: dict[bytes, int]) -> None:
        """Append the marker of a transaction. own: the records of the transaction, if it is known which there are."""
        commit, machine = self.deciding[producer_id], self.machine
        self._append_marker(machine.delayed, producer_id, commit)

        def safe(error: RequestError | None) -> None:
            if error is None and not machine.is_down:
                del self.deciding[producer_id]
                self.promised.update(own if commit else {})

        machine.delayed.term.when_committed(machine.delayed.log.log_end_offset, safe)

    @rule(count=st.integers(1, 3))
    def write_to_target(self, count: int) -> None:
        """Another producer writes to the target."""
        values = [b"other %d" % (len(self.others) + place) for place in range(count)]
        batch = encode_batch([(self.clock.now_ms(), None, value, ()) for value in values])
        info = self.machine.target.append(own_batch(batch), self.clock.now_ms())
        self.others |= {value: info.first_offset + place for place, value in enumerate(values)}

    @rule()
    def forget_producers_of_target(self) -> None:
        """The target has not heard of its producers for long. After a crash it may remember some of them again."""
        producers = self.machine.target.log.producers
        producers.expire(self.clock.now_ms() + 10**10)

    @rule(producer_id=st.sampled_from(DIRECT_PRODUCERS), commit=st.booleans())
    def take_part_in_target(self, producer_id: int, commit: bool) -> None:
        """Another producer begins a transaction in the target, or ends it."""
        target = self.machine.target
        if producer_id in target.log.producers.transactions.opened:
            return self._append_marker(target, producer_id, commit)
        batch = encode_batch([(0, None, None, ())], **transactional(producer_id, next_sequence(target, producer_id)))
        target.append(own_batch(batch), 0)

    @rule(share=st.floats(0, 1))
    def delete_from_target(self, share: float) -> None:
        """DeleteRecords on the target, of records that may be those of an intent in progress."""
        target = self.machine.target
        self.machine.trim_later(target, int(share * target.term.high_watermark))

    @rule(share=st.floats(0, 1))
    def delete_from_delayed(self, share: float) -> None:
        """DeleteRecords on the delayed topic: what still waits there is not forwarded any more."""
        delayed = self.machine.delayed
        offset = int(share * delayed.term.high_watermark)
        self.excused |= {value for value, place in self._places().items() if place < offset}
        self.machine.trim_later(delayed, offset)

    def _places(self) -> dict[bytes, int]:
        return {record.value: record.offset for record in records(self.machine.delayed) if record.value is not None}

    def _append_marker(self, partition: Partition, producer_id: int, commit: bool) -> None:
        marker = TransactionMarker(producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, commits=commit)
        append_marker(partition, marker, 0, self.clock.now_ms())

    @rule(choice=SEEDS)
    def cancel(self, choice: int) -> None:
        if not self.promised:
            return
        value = Random(choice).choice(sorted(self.promised))

        refusals: list[ErrorKind] = []

        def answer(error: RequestError | None) -> None:
            if error is None:
                self.cancelled.add(value)
            else:
                refusals.append(error.kind)

        now_ms = self.clock.now_ms()
        try:
            self.machine.forwarder.cancel(self.promised[value], answer)
        except RequestError as error:
            refusals.append(error.kind)
        delayed = self.machine.delayed
        if refusals == [ErrorKind.UNKNOWN_MESSAGE]:
            assert self.promised[value] < delayed.log.log_start_offset, "it is not found"
        elif refusals == [ErrorKind.COORDINATOR_LOADING]:
            is_scanned = self.promised[value] < self.machine.forwarder.machine.scanned_offset
            assert not is_scanned, "it could have been cancelled"
        elif refusals:
            assert refusals == [ErrorKind.MESSAGE_NOT_DELAYED]
            latest_ms = max(self.latest_ms, now_ms)
            assert self.due[value] <= latest_ms or value in self.cancelled, "it could have been cancelled"
        else:
            assert self.due[value] > now_ms, "it could not be cancelled any more"
            self.perhaps_cancelled.add(value)

    @rule(name=SIDES)
    def write(self, name: str) -> None:
        self.machine.sides[name].write()

    @rule(name=SIDES)
    def begin_flush(self, name: str) -> None:
        self.machine.begin_flush(name)

    @rule(name=SIDES)
    def end_flush(self, name: str) -> None:
        self.machine.end_flush(name)

    @rule()
    def turn(self) -> None:
        self.machine.run_some()

    @rule(ms=st.integers(0, 40))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @rule(by_ms=st.integers(-200, 200))
    def set_wall_clock(self, by_ms: int) -> None:
        now_ms = self.clock.now_ms()
        self.latest_ms = max(self.latest_ms, now_ms)
        self.out |= {value for value, due_ms in self.due.items() if due_ms <= now_ms}  # It may be on its way already.
        self.clock.set_wall_clock(by_seconds=by_ms / 1000)

    @rule(steps=st.integers(1, 12))
    def go_on(self, steps: int) -> None:
        self.machine.go_on(steps)

    @rule()
    def settle(self) -> None:
        self.machine.settle()

    @rule()
    def trim(self) -> None:
        job = retain(self.machine.delayed, self.clock.now_ms(), self.machine.readers.get(self.machine.delayed))
        if job is not None:
            job.run()

    @rule()
    def lead_again(self) -> None:
        """The broker resigns and leads again, as far as the logs are committed."""
        self.machine.forwarder.stop()
        self.machine.soon.clear()
        for name in (TARGET, STATE):
            side = self.machine.sides[name]
            side.write()
            for _ in range(2):
                self.machine.end_flush(name)
                self.machine.begin_flush(name)
            self.machine.end_flush(name)
        self.machine.restart_forwarder(self.at_once)

    @rule(seed=SEEDS, is_power_cut=st.booleans())
    def crash(self, seed: int, is_power_cut: bool) -> None:
        if is_power_cut and self.settings.flush_policy == "os":
            self.excused |= self.offsets.keys()
        self.restart(self.machine.disk.power_cut(Random(seed)) if is_power_cut else self.machine.disk)

    @rule(seed=SEEDS)
    def restart_cleanly(self, seed: int) -> None:
        self.machine.forwarder.stop()
        for name, side in self.machine.sides.items():
            self.machine.end_flush(name)
            side.log.close()
        self.restart(self.machine.disk.power_cut(Random(seed)))

    def restart(self, disk: MemoryDisk) -> None:
        self.machine.is_down = True
        self.machine = Machine(disk, self.clock, self.settings, self.at_once)
        delayed, target_end = self.machine.delayed, self.machine.target.log.log_end_offset
        self.offsets = {value: offset for value, offset in self.offsets.items() if offset < target_end}
        self.others = {value: offset for value, offset in self.others.items() if offset < target_end}
        opened, end_offset = delayed.log.producers.transactions.opened, led(delayed).epoch_start_offset
        self.open = {
            producer_id: {value: offset for value, offset in own.items() if offset < end_offset}
            for producer_id, own in self.open.items()
            if producer_id in opened
        }
        for producer_id in list(self.deciding):  # A coordinator sends its markers again.
            if producer_id in opened:
                self._decide(producer_id, {})
            else:
                del self.deciding[producer_id]

    @invariant()
    def what_has_come_out_was_due_and_came_once(self) -> None:
        if not hasattr(self, "machine"):
            return
        now_ms = self.clock.now_ms()
        for record in records(self.machine.target):
            value = record.value
            if value is None or value in self.others:
                continue
            assert self.offsets.setdefault(value, record.offset) == record.offset, "a record was forwarded twice"
            assert value in self.permitted, "a record was forwarded whose transaction is not committed"
            assert value in self.out or self.due[value] <= now_ms, "a record was forwarded before its time"
            assert value not in self.cancelled
            self.out.add(value)

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        for producer_id in list(self.open):
            self.end_transaction(producer_id, commit=True)
        self.machine.settle()
        self.what_has_come_out_was_due_and_came_once()
        before = self.machine.target.log.log_end_offset
        self.clock.advance(ms=2_000 + max(0, self.latest_ms - self.clock.now_ms()))
        self.machine.settle()
        self.what_has_come_out_was_due_and_came_once()
        lost = self.promised.keys() - self.perhaps_cancelled - self.excused - self.offsets.keys()
        assert not lost, "an acknowledged record was lost"
        out = sorted(self.offsets.items(), key=lambda item: item[1])
        last = [self.due[value] for value, offset in out if offset >= before]
        assert last == sorted(last), "records that waited came out of order"
        at_once = [int(value) for value, _ in out if self.due[value] == AT_ONCE]
        assert self.excused or at_once == sorted(at_once), "records without delay came out of order"
        self.clock.advance(ms=2_000)  # A last intent states that the others are carried out.
        self.machine.settle()
        waiting = self.machine.forwarder.machine.retain_from_offset()
        assert waiting == last_stable_offset(self.machine.delayed), (
            "a record is withheld forever, or was forwarded and is kept"
        )


def transactional(producer_id: int, sequence: int) -> dict[str, int]:
    return {
        "attributes": TRANSACTIONAL,
        "producer_id": producer_id,
        "producer_epoch": 0,
        "base_sequence": sequence,
    }


def next_sequence(partition: Partition, producer_id: int) -> int:
    entries = partition.log.producers.entries()
    known = dict(zip(entries.producer_ids, entries.producers, strict=True)).get(producer_id)
    return known.batches[-1].last_sequence + 1 if known is not None and known.batches else 0


TestForwarding = EachRecordIsForwardedOnce.TestCase
TestForwarding.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
