"""A consumer of committed records gets exactly them, below the first open transaction, from any offset and in any size.
A queue delivers exactly them.

The model is the list of all records with the transaction of each. The consumer of these tests skips aborted records as
Kafka's clients do: by the list that comes with the batches, and the markers among them.
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conveyor.kernel.state_machine import Token
from conveyor.log.record_source import MessageSource
from conveyor.queues.delivery.inspection import UnsettledMessages
from conveyor.queues.delivery.memory_budget import MemoryBudget
from conveyor.queues.queue_commands import SeekSubscription, SubscriptionProbe
from conveyor.queues.queue_machine import QueueMachine
from conveyor.records.batch import TRANSACTIONAL, iterate_batches
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import decode_records, encode_batch
from conveyor.records.transaction_marker import TransactionMarker, is_marker
from conveyor.replication.reads import CommittedSlice, read_committed
from conveyor.replication.transactions import append_marker, last_stable_offset
from conveyor.settings.tree import TopicSettings
from tests.unit.log.logs import NOW_MS
from tests.unit.queues.stage import SUBSCRIPTION, subscription
from tests.unit.replication.parts import Owner, batch

PRODUCERS = st.integers(1, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("send"), PRODUCERS, st.integers(1, 3)),
        st.tuples(st.just("commit"), PRODUCERS, st.just(0)),
        st.tuples(st.just("abort"), PRODUCERS, st.just(0)),
        st.tuples(st.just("settle"), st.just(0), st.just(0)),
    ),
    min_size=8,
    max_size=40,
)


@dataclass
class Transaction:
    """One transaction of the model. ended_at: the offset of its marker."""

    first_offset: int
    commits: bool = False
    ended_at: int | None = None


@dataclass
class World:
    """A partition with small segments, and the model of it: the transaction of each record, None for plain ones."""

    owner: Owner = field(default_factory=lambda: Owner(TopicSettings(segment_bytes=400)))
    records: dict[int, Transaction | None] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    opened: dict[int, Transaction] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    def step(self, kind: str, producer_id: int, count: int) -> None:
        partition = self.owner.partition
        if kind == "settle":
            if partition.log.written_offset < partition.log.log_end_offset:
                self.owner.settle()
        elif kind == "plain":
            first = partition.append(batch(*[b"plain"] * count), NOW_MS).first_offset
            self.records.update(dict.fromkeys(range(first, first + count)))
        elif kind == "send":
            self._send(producer_id, count)
        else:
            self._end(producer_id, commits=kind == "commit")

    def _send(self, producer_id: int, count: int) -> None:
        sequence = self.sequences.get(producer_id, 0)
        content = encode_batch(
            [(NOW_MS, None, b"sent", ())] * count,
            attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
        )  # fmt: skip
        first = self.owner.partition.append(own_batch(content), NOW_MS).first_offset
        self.sequences[producer_id] = sequence + count
        if producer_id not in self.opened:
            self.opened[producer_id] = Transaction(first)
            self.transactions.append(self.opened[producer_id])
        self.records.update(dict.fromkeys(range(first, first + count), self.opened[producer_id]))

    def _end(self, producer_id: int, *, commits: bool) -> None:
        marker = TransactionMarker(producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, commits=commits)
        info = append_marker(self.owner.partition, marker, 1, NOW_MS)
        transaction = self.opened.pop(producer_id, None)
        if transaction is not None:
            assert info is not None
            transaction.commits, transaction.ended_at = commits, info.first_offset

    def stable_offset(self) -> int:
        high_watermark = self.owner.partition.term.high_watermark
        unstable = [
            transaction.first_offset
            for transaction in self.transactions
            if transaction.ended_at is None or transaction.ended_at >= high_watermark
        ]
        return min([high_watermark, *unstable])

    def committed(self, offset: int, end: int) -> list[int]:
        return [
            at
            for at, transaction in sorted(self.records.items())
            if offset <= at < end and (transaction is None or transaction.commits)
        ]


def consume(fetched: CommittedSlice, offset: int) -> tuple[list[int], int]:
    """Return the offsets of the records that a client passes on, and the next offset that it fetches."""
    assert fetched.records is not None
    content = fetched.records.file.read(fetched.records.position, fetched.records.length)
    waiting = sorted(fetched.aborted, key=lambda aborted: aborted.first_offset)
    aborting: set[int] = set()
    seen, following = [], offset
    for position, header in iterate_batches(content):
        last = header.base_offset + header.last_offset_delta
        while waiting and waiting[0].first_offset <= last:
            aborting.add(waiting.pop(0).producer_id)
        following = last + 1
        if is_marker(header):
            aborting.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in aborting):
            whole = content[position : position + 12 + header.batch_length]
            seen += [record.offset for record in decode_records(whole) if record.offset >= offset]
    return seen, following


@given(STEPS, st.booleans(), st.sampled_from([1, 150, 250, 600]), st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_consumer_gets_the_committed_records_from_any_offset(
    steps: list[tuple[str, int, int]], settles: bool, max_bytes: int, data: st.DataObject
) -> None:
    world = World()
    for step in steps:
        world.step(*step)
    if settles:
        world.step("settle", 0, 0)
    partition = world.owner.partition
    stable_offset = last_stable_offset(partition)
    assert stable_offset == world.stable_offset()
    offset = data.draw(st.integers(0, partition.term.high_watermark))
    while offset < stable_offset:
        fetched = read_committed(partition, offset, max_bytes, at_least_one=True)
        seen, following = consume(fetched, offset)
        assert offset < following <= stable_offset
        assert seen == world.committed(offset, following)
        assert all(aborted.first_offset < following and aborted.last_offset >= offset for aborted in fetched.aborted)
        offset = following
    assert read_committed(partition, offset, max_bytes, at_least_one=True).records is None


def queue_of(world: World) -> QueueMachine:
    """Return the machine of a queue with one subscription, which begins at the first message."""
    source = MessageSource("t", 0, world.owner.partition.log)
    machine = QueueMachine(source, 0, lambda: 0.5, lambda _: SubscriptionProbe(), MemoryBudget(1_000))
    machine.set_subscriptions({SUBSCRIPTION: subscription()})
    for record in machine.handle(SeekSubscription(subscription=SUBSCRIPTION, offset=0), Token(0), NOW_MS).records:
        machine.apply(record)
    return machine


@given(STEPS, st.lists(st.booleans(), min_size=40, max_size=40))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_queue_holds_the_committed_messages(steps: list[tuple[str, int, int]], looks: list[bool]) -> None:
    world = World()
    machine = queue_of(world)
    source, partition = machine._source, world.owner.partition
    for step, is_looking in zip(steps, looks, strict=False):
        world.step(*step)
        while is_looking and not machine.advance(last_stable_offset(partition), NOW_MS):
            pass
    stable_offset = last_stable_offset(partition)
    while not machine.advance(stable_offset, NOW_MS):
        pass
    queue = machine.queue(SUBSCRIPTION)
    assert queue is not None
    committed = world.committed(0, stable_offset)
    unsettled = [message for message, _ in UnsettledMessages(queue, source, stable_offset) if message is not None]
    assert [message.offset for message in unsettled] == committed
    assert queue.progress.unsettled_count(stable_offset) == len(committed)
    assert [offset for offset in range(stable_offset) if source.get(offset) is not None] == committed
