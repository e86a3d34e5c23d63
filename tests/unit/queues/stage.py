"""A topic's partition as a queue in memory: the work of a broker around a machine, one step at a time."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TypeVar, cast
from uuid import UUID

from conveyor.kernel.ids import LeaderEpoch, ProducerIdentity, TopicId, TopicPartition
from conveyor.kernel.state_machine import Outcome, Token
from conveyor.log.log import Log
from conveyor.log.log_probe import LogProbe
from conveyor.log.record_source import MessageSource, StillPacked, unpack_batch
from conveyor.log.recovery.recovery import open_log
from conveyor.queues.delivery.ack_id import decode_ack_id
from conveyor.queues.delivery.inspection import Peek, Peeked, count_messages, find_oldest_ms
from conveyor.queues.delivery.memory_budget import MemoryBudget
from conveyor.queues.delivery.subscription_queue import SubscriptionQueue
from conveyor.queues.queue_commands import (
    Acknowledge,
    AcknowledgeInTransaction,
    ForgetSubscription,
    LeasedMessage,
    LeaseMessages,
    NackMessages,
    PutSubscription,
    QueueCommand,
    SeekSubscription,
    Settled,
    SubscriptionCounts,
    SubscriptionProbe,
    Target,
)
from conveyor.queues.queue_machine import QueueMachine
from conveyor.queues.subscription.policy import StartPosition, Subscription, default_policy, policy_from_document
from conveyor.records import compression
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import Header, encode_batch
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.machine_runner import MachineRunner, Respond, replay
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset
from conveyor.replication.trimming import delete_records
from conveyor.settings.tree import ProducerSettings, TopicSettings
from conveyor.testing import ManualClock, MemoryDisk
from tests.unit.replication.parts import NO_CALLS, leader

Answer = TypeVar("Answer")
TOPIC = "t"
STATE = "__queue_state.t"
SUBSCRIPTION = UUID(int=7 << 96)
TOPIC_ID = TopicId(UUID(int=1))
VISIBILITY_MS = 30_000


def subscription(identity: UUID = SUBSCRIPTION, **document: object) -> Subscription:
    """Return a subscription with this policy."""
    policy = policy_from_document(TOPIC, document, default_policy(TOPIC, 100_000))
    return Subscription(
        id=identity,
        name=f"s{identity.int >> 96}",
        topic=TOPIC,
        topic_id=TOPIC_ID,
        start=StartPosition(kind="earliest"),
        partition_count=1,
        policy=policy,
    )


def header(name: str, value: object) -> Header:
    return f"conveyor-{name}", str(value).encode()


class DecidedMachine(QueueMachine):
    """Stores its last decision before any reply is sent."""

    decided: object = None

    def handle(self, command: QueueCommand[object], token: Token, now_ms: int) -> Outcome:
        outcome = super().handle(command, token, now_ms)
        self.decided = outcome.replies[0].value
        return outcome


class Stage:
    """See the module's docstring. Only `settle`, which `ask` calls, writes and flushes."""

    def __init__(
        self,
        *subscriptions: Subscription,
        begun: bool = True,
        topic: TopicSettings | None = None,
        acks: MemoryBudget | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.disk = MemoryDisk()
        self.subscriptions: Mapping[UUID, Subscription] = {}
        self.fraction = 0.5
        self.probes: dict[UUID, SubscriptionProbe] = {}
        self._topic = topic or TopicSettings()
        self.acks = acks or MemoryBudget(1_000)
        self._incarnation = 0
        self._open()
        self.set_subscriptions(*subscriptions)
        for new in subscriptions if begun else ():
            self.ask(SeekSubscription(subscription=new.id, offset=0))

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    @property
    def queue(self) -> SubscriptionQueue:
        found = self.machine.queue(SUBSCRIPTION)
        assert found is not None
        return found

    def set_subscriptions(self, *subscriptions: Subscription) -> None:
        """Replace the existing subscriptions and their policies."""
        gone = self.subscriptions
        self.subscriptions = {new.id: new for new in subscriptions}
        for identity in gone.keys() - self.subscriptions.keys():
            self.ask(ForgetSubscription(subscription=identity))
        for subscription in subscriptions:
            self.ask(PutSubscription(subscription=subscription))

    def publish(
        self, *records: tuple[bytes | None, bytes | None, Sequence[Header]], codec: int = compression.NONE
    ) -> None:
        """Append one durable batch of (key, value, headers)."""
        batch = encode_batch([(self.now_ms, *record) for record in records], codec=codec)
        self.messages.append(own_batch(batch), self.now_ms)
        self.settle()

    def publish_plain(self, count: int) -> None:
        self.publish(*[(None, b"%d" % number, ()) for number in range(count)])

    def submit(self, command: QueueCommand[object], respond: Respond[Any] = lambda _: None) -> object:
        """Submit a command. Returns the decision; `respond` is called once it is durable."""
        try:
            self.runner.submit(command, respond)
        except StillPacked as packed:
            self.source.keep(unpack_batch(packed.header, packed.place))
            return self.submit(command, respond)
        self.advance()
        return self.machine.decided

    def ask(self, command: QueueCommand[Answer]) -> Answer:
        replies: list[Answer] = []
        self.submit(command, cast("Respond[Any]", replies.append))
        self.settle()
        return replies[0]

    def lease(
        self,
        count: int = 1,
        visibility_ms: int = VISIBILITY_MS,
        identity: UUID = SUBSCRIPTION,
        max_bytes: int = 1 << 20,
        lowest_priority: int = 0,
    ) -> tuple[LeasedMessage, ...]:
        command = LeaseMessages(
            subscription=identity,
            count=count,
            max_bytes=max_bytes,
            visibility_ms=visibility_ms,
            lowest_priority=lowest_priority,
        )
        return tuple(self.ask(command))

    def lease_offsets(self, count: int = 1000, visibility_ms: int = VISIBILITY_MS) -> list[int]:
        return [leased.message.offset for leased in self.lease(count, visibility_ms)]

    def ack(self, *targets: Target) -> Settled:
        return self.ask(Acknowledge(subscription=SUBSCRIPTION, targets=targets))

    def nack(self, *targets: Target, delay_ms: int | None = 0) -> Settled:
        return self.ask(NackMessages(subscription=SUBSCRIPTION, targets=targets, delay_ms=delay_ms))

    def ack_in_transaction(self, producer: ProducerIdentity, *targets: Target) -> Settled:
        return self.ask(AcknowledgeInTransaction(subscription=SUBSCRIPTION, targets=targets, producer=producer))

    def end_transaction(self, producer: ProducerIdentity, *, commits: bool) -> None:
        """Append the marker of a producer. Leases that it ends are not expired before `expire`."""
        marker = TransactionMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=0,
            commits=commits,
        )
        self.runner.resolve_by_marker(marker, 0)
        self.advance()

    def counts(self) -> SubscriptionCounts:
        return count_messages(self.queue, self.source.log_start_offset, self.messages.term.high_watermark)

    def oldest_ms(self) -> int | None:
        return find_oldest_ms(self.queue, self.source, self.messages.term.high_watermark)

    def peek(self, limit: int = 1_000) -> list[Peeked]:
        """Return the first unsettled messages."""
        peek = Peek(limit, self.now_ms)
        search = peek.search(self.queue, self.source, self.messages.term.high_watermark)
        while not search():
            pass
        return peek.found

    def settle(self) -> None:
        """Write and flush everything, and scan the new records."""
        for partition in (self.messages, self.state):
            partition.write()
            job = partition.begin_flush()
            if job is not None:
                job.run()
                partition.complete_flush(job, None)
        self.advance()

    def advance(self) -> None:
        while not self.machine.advance(self.messages.term.high_watermark, self.now_ms):
            pass
        self.runner.wake()
        while (packed := self.machine.agenda.packed) is not None:
            self.source.keep(unpack_batch(packed.header, packed.place))
            self.machine.agenda.unpacked()
            self.runner.expire()

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms=ms)
        self.advance()

    def snapshot(self) -> None:
        """Write a snapshot of the state, and delete the records before it, except those of open transactions."""
        offset = self.runner.append_applied(self.machine.snapshot())
        assert offset is not None
        self.settle()
        delete_records(self.state, min(offset, last_stable_offset(self.state))).run()

    def delete_below(self, offset: int) -> None:
        """Delete the records below an offset, as retention does."""
        delete_records(self.messages, offset).run()
        self.advance()

    def restart(self) -> None:
        """Stop cleanly, and start again."""
        self.settle()
        self.runner.stop()
        for partition in (self.messages, self.state):
            partition.log.close()
        self._load()

    def crash(self, seed: int = 0) -> None:
        """Lose the power and start again: some unflushed data may survive."""
        self.runner.stop()
        self.disk = self.disk.power_cut(Random(seed))
        self._load()

    def _load(self) -> None:
        self._open()
        replay(self.state.log, self.machine)
        self.machine.set_subscriptions(self.subscriptions)
        self.advance()

    def _open(self) -> None:
        self._incarnation += 1
        self.messages = _partition(TOPIC, self._log(TOPIC, self._topic))
        self.state = _partition(STATE, self._log(STATE, TopicSettings(max_message_bytes=(1 << 31) - 1)))
        self.source = MessageSource(TOPIC, 0, self.messages.log)
        self.machine = DecidedMachine(
            self.source,
            self._incarnation,
            lambda: self.fraction,
            lambda identity: self.probes.setdefault(identity, SubscriptionProbe()),
            self.acks,
        )
        self.runner = MachineRunner[QueueCommand[object]](self.state, self.machine, self.clock)

    def _log(self, name: str, topic: TopicSettings) -> Log:
        return open_log(self.disk, f"logs/{name}-0", TOPIC_ID, topic, ProducerSettings(), LogProbe(), self.now_ms)


def target(leased: LeasedMessage) -> Target:
    """Return the target that an ack id identifies."""
    lease_id = decode_ack_id(SUBSCRIPTION, leased.ack_id)
    assert lease_id is not None
    return Target(lease_id.offset, (lease_id.incarnation, lease_id.number))


def _partition(name: str, log: Log) -> Partition:
    return Partition(TopicPartition(name, 0), log, leader(LeaderEpoch(1)), NO_CALLS)
