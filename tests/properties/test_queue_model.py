"""A subscription under random messages, consumers, time, policies and crashes: it does what a dict of messages says.

After each step the machine's hard state is the model's, message by message, and so are its leases and counts. After a
crash it is what the model was at some moment since the last flush: nothing that was confirmed is lost. At the end,
everything that is unsettled can be leased. PROPERTY_EXAMPLES in the environment says how many stories are told; 500 by
default.
"""

import os
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.queues.delivery import deliveries
from conveyor.queues.delivery.deliveries import MAX_INDEXED
from conveyor.queues.delivery.inspection import message_state
from conveyor.queues.messages.dead_copies import Copy, CopyLog
from conveyor.queues.queue_commands import (
    Acknowledge,
    AcknowledgeInTransaction,
    Cancel,
    DropDeadLetters,
    Extend,
    LeasedMessage,
    LeaseMessages,
    MoveToDeadLetters,
    NackMessages,
    QueueCommand,
    Redeliver,
    Redelivered,
    Reject,
    Release,
    SeekSubscription,
    Target,
)
from conveyor.records import compression
from conveyor.settings.tree import TopicSettings
from tests.properties.queue_messages import MESSAGES, ORDERS, PICKS, POLICIES, PRODUCERS, headers_of
from tests.properties.queue_views import check_scheduled, check_settled_states, ended_lease
from tests.unit.queues.delivery_order import check_batches, check_priorities, check_turns
from tests.unit.queues.model import COPY_LOGS, Hard, Known, QueueModel, hard_of, kinds
from tests.unit.queues.stage import SUBSCRIPTION, Stage, subscription, target

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "500"))
DRAIN_MS = 3_600_000


class QueueStory(RuleBasedStateMachine):
    """One subscription and its model."""

    @initialize(policy=POLICIES, order=ORDERS, max_indexed=st.sampled_from([MAX_INDEXED, MAX_INDEXED, 3]))
    def start(self, policy: dict[str, Any], order: dict[str, Any], max_indexed: int) -> None:
        mine = subscription(**policy, **order)
        self.is_bounded = max_indexed < MAX_INDEXED
        self.limit = patch.object(deliveries, "MAX_INDEXED", max_indexed)
        self.limit.start()
        self.stage = Stage(mine, topic=TopicSettings(segment_bytes=600))
        self.model = QueueModel(mine.policy)
        self.given: list[Target] = []
        self.next_offset = 0
        self.copies_count = 0
        self.unconfirmed: list[tuple[object, list[object]]] = []
        self.moments: list[dict[int, Known]] = []
        self.knows_settlements = True
        self.flushed()

    @rule(specs=st.lists(MESSAGES, min_size=1, max_size=5), codec=st.sampled_from([compression.NONE, compression.LZ4]))
    def publish(self, specs: list[dict[str, Any]], codec: int) -> None:
        self.stage.publish(*[(each["key"], b"", headers_of(each)) for each in specs], codec=codec)
        for each in specs:
            due_ms = self.stage.now_ms + each["delay"] if each["delay"] else 0
            expires_ms = (due_ms or self.stage.now_ms) + each["ttl"] if each["ttl"] else 0
            self.add(Known(0, each["key"], each["priority"], due_ms, expires_ms, each["wanted"], each["group"]))
        self.confirm()

    @rule(count=st.integers(1, 8))
    def publish_plain(self, count: int) -> None:
        self.stage.publish_plain(count)
        for _ in range(count):
            self.add(Known(0, None, 4, 0, 0, "fail", ""))
        self.confirm()

    @rule(
        count=st.integers(1, 8),
        visibility_ms=st.sampled_from([0, 1_000, 30_000, 30_000]),
        lowest=st.sampled_from([0, 0, 0, 5]),
    )
    def lease(self, count: int, visibility_ms: int, lowest: int) -> None:
        self.lease_some(count, visibility_ms, lowest)

    @rule(picks=PICKS, accepts_late=st.booleans())
    def acknowledge(self, picks: list[int], accepts_late: bool) -> None:
        targets = self.targets(picks)
        expected = self.model.acknowledge(targets, accepts_late)
        command = Acknowledge(subscription=SUBSCRIPTION, targets=targets, accepts_late=accepts_late)
        assert kinds(self.submit(command)) == expected

    @rule(picks=PICKS, producer=PRODUCERS)
    def acknowledge_in_transaction(self, picks: list[int], producer: ProducerIdentity) -> None:
        targets = self.targets(picks)
        expected = self.model.acknowledge_in_transaction(targets, producer)
        command = AcknowledgeInTransaction(subscription=SUBSCRIPTION, targets=targets, producer=producer)
        assert kinds(self.submit(command)) == expected

    @rule(producer=PRODUCERS, commits=st.booleans())
    def end_transaction(self, producer: ProducerIdentity, commits: bool) -> None:
        """After an abort, messages that were leased count as delivered in vain. After a restart it may be unknown
        whether they were.
        """
        held = set(self.stage.queue.deliveries.leases.pending)
        ended = self.model.end_transaction(producer, commits=commits)
        self.stage.end_transaction(producer, commits=commits)
        self.remember()
        if commits:
            return
        for each in ended:
            if each.offset in held:
                each.lease = ended_lease(each.deliveries + 1)
        self.model.pass_time(self.stage.now_ms, self.stage.now_ms)
        self.stage.runner.expire()
        self.note_what_was_looked_at(set())
        self.remember()

    @rule(picks=PICKS, delay_ms=st.sampled_from([0, None, 700]))
    def retry(self, picks: list[int], delay_ms: int | None) -> None:
        targets = self.targets(picks)
        expected, held = self.model.held(targets)
        for each in held:
            self.model.fail(each, self.stage.now_ms, delay_ms)
        command = NackMessages(subscription=SUBSCRIPTION, targets=targets, delay_ms=delay_ms)
        assert kinds(self.submit(command)) == expected

    @rule(picks=PICKS, visibility_ms=st.sampled_from([0, 500, 60_000]))
    def extend(self, picks: list[int], visibility_ms: int) -> None:
        targets = self.targets(picks)
        expected, held = self.model.held(targets)
        ends_ms = self.stage.now_ms + visibility_ms
        for each in held:
            assert each.lease is not None
            each.lease = each.lease._replace(expires_ms=ends_ms)
        command = Extend(subscription=SUBSCRIPTION, targets=targets, visibility_ms=visibility_ms)
        assert kinds(self.submit(command)) == expected

    @rule(picks=PICKS)
    def reject(self, picks: list[int]) -> None:
        targets = self.targets(picks)
        expected, held = self.model.held(targets)
        for each in held:
            self.model.reject(each)
        assert kinds(self.submit(Reject(subscription=SUBSCRIPTION, targets=targets, reason="bad"))) == expected

    @rule(picks=PICKS)
    def release(self, picks: list[int]) -> None:
        targets = self.targets(picks)
        for each in self.model.held(targets)[1]:
            each.lease = None
        self.submit(Release(subscription=SUBSCRIPTION, targets=targets))

    @rule(ms=st.sampled_from([1, 499, 500, 1_000, 3_000, 30_000]))
    def time_passes(self, ms: int) -> None:
        before_ms = self.stage.now_ms
        waiting = [each for each in self.model if each.is_open and not each.lease and not each.pending]
        self.model.pass_time(before_ms, before_ms + ms)
        self.stage.pass_time(ms)
        self.note_what_was_looked_at(set())
        if not self.is_bounded:
            now_ms = self.stage.now_ms
            assert not [each for each in waiting if each.is_open and each.is_due(now_ms) and each.is_expired(now_ms)]
        self.remember()

    @rule(policy=POLICIES, order=ORDERS, keeps_order=st.booleans())
    def change_policy(self, policy: dict[str, Any], order: dict[str, Any], keeps_order: bool) -> None:
        before = self.model.policy
        if keeps_order:
            names = ("ordering", "fair_by", "priority_ageing_ms")
            limit = order.get("max_in_flight_per_key", 1) if before.ordering == "key" else 1
            order = {name: getattr(before, name) for name in names} | {"max_in_flight_per_key": limit}
        mine = subscription(**policy, **order)
        self.model.policy = after = mine.policy
        if (before.ordering, before.fair_by) != (after.ordering, after.fair_by) or (
            before.priority_ageing_ms != after.priority_ageing_ms
        ):
            self.model.forget_leases()
        self.stage.set_subscriptions(mine)
        self.confirm()

    @rule(pick=st.integers(0, 1_000))
    def seek(self, pick: int) -> None:
        start = self.log_start
        offset = start + pick % (self.end - start + 1)
        settled = self.model.seek(offset)
        self.knows_settlements = False
        assert self.submit(SeekSubscription(subscription=SUBSCRIPTION, offset=offset)) == settled or start

    @rule(pick=st.integers(0, 1_000))
    def cancel(self, pick: int) -> None:
        delayed = [each for each in self.model if each.due_ms > self.stage.now_ms]
        known = delayed[pick % len(delayed)] if delayed and pick % 4 else self.model.messages.get(pick % (self.end + 1))
        refused = self.submit(Cancel(offset=self.end if known is None else known.offset))
        is_due = known is None or known.due_ms <= self.stage.now_ms
        is_cancelled = known is not None and known.cancelled
        assert isinstance(refused, RequestError) == (is_due and not is_cancelled)
        if known is not None and not is_due:
            known.cancelled = True
            if not known.settled:
                known.settle()
            self.remember_last()

    @rule(limit=st.integers(1, 5), logs=st.lists(st.sampled_from([None, *COPY_LOGS]), min_size=5, max_size=5))
    def dead_letter(self, limit: int, logs: list[CopyLog | None]) -> None:
        offsets = tuple(offset for offset, _ in self.stage.queue.deliveries.dead_lettering.first(limit))
        places = zip(offsets, logs, range(self.copies_count, self.copies_count + 5), strict=False)
        copies = {offset: Copy(log, place) for offset, log, place in places if log is not None}
        self.copies_count += 5
        for known in [self.model.messages[each] for each in offsets if each in self.model.messages]:
            known.settle()
            known.dead, known.copy = True, copies.get(known.offset)
        self.submit(MoveToDeadLetters(subscription=SUBSCRIPTION, offsets=offsets, copies=copies))

    @rule(picks=PICKS, drops=st.sampled_from([False, False, True]))
    def raise_the_dead(self, picks: list[int], drops: bool) -> None:
        dead = [each for each in self.model if each.dead]
        chosen = [dead[pick % len(dead)] for pick in picks] if dead else []
        offsets = tuple(each.offset for each in chosen)
        for each in chosen:
            each.dead = False
            if not drops:
                each.settled, each.restored, each.came_back = False, True, True
        if drops:
            self.submit(DropDeadLetters(subscription=SUBSCRIPTION, offsets=offsets))
        else:
            assert self.submit(Redeliver(subscription=SUBSCRIPTION, offsets=offsets)) == Redelivered(len(offsets), [])

    @rule()
    def flushed(self) -> None:
        self.stage.settle()
        self.confirm()

    @rule(seed=st.integers(0, 1_000))
    def crash(self, seed: int) -> None:
        """What was confirmed holds; what was not, up to some moment."""
        self.stage.crash(seed)
        found = self.found()
        moments = [each for each in self.moments if {offset: known.hard for offset, known in each.items()} == found]
        assert moments, "the state is what it never was"
        self.model.messages = moments[-1]
        self.restarted()

    @rule()
    def restart(self) -> None:
        self.stage.restart()
        self.restarted()

    @rule()
    def snapshot(self) -> None:
        self.stage.snapshot()
        self.knows_settlements = False
        self.confirm()

    @rule(pick=st.integers(0, 1_000))
    def retention(self, pick: int) -> None:
        """Of what the log loses, nothing is asked here but that it does not hurt."""
        start = self.log_start
        offset = start + pick % (self.end - start + 1)
        self.stage.delete_below(offset)
        for each in [each for each in self.model.messages if each < offset]:
            del self.model.messages[each]
        self.stage.settle()
        self.confirm()

    @invariant()
    def hard_state_is_the_models(self) -> None:
        assert self.found() == self.model.hard()

    @invariant()
    def leases_are_the_models(self) -> None:
        start = self.log_start
        leases = self.stage.queue.deliveries.leases.items()
        found = {offset: (each.number, each.ends_ms) for offset, each in leases if offset >= start}
        known = {each.offset: each.lease for each in self.model.leased if each.lease is not None}
        assert found == {offset: (_number(each), each.expires_ms) for offset, each in known.items()}

    @invariant()
    def counts_are_the_models(self) -> None:
        if self.log_start:
            return
        counts, now_ms = self.stage.counts(), self.stage.now_ms
        unsettled = [each for each in self.model if not each.settled]
        assert counts.unsettled == len(unsettled)
        assert counts.in_flight == len(self.model.leased)
        assert counts.pending == sum(each.pending is not None for each in self.model)
        assert counts.dead == sum(each.dead for each in self.model)
        is_exact = not self.is_bounded and self.model.policy.ordering == "none"
        if is_exact:
            free = [each for each in unsettled if each.is_open and not each.lease and not each.pending]
            withheld = [each for each in free if not each.is_due(now_ms)]
            assert counts.withheld == len(withheld)
        if not self.is_bounded:
            dead_lettering = {offset for offset, _ in self.stage.queue.deliveries.dead_lettering.first(1_000)}
            assert dead_lettering == {each.offset for each in self.model if each.dead_lettering}

    @invariant()
    def peeking_shows_what_is_unsettled(self) -> None:
        seen = self.stage.peek()
        assert [each.message.offset for each in seen] == [each.offset for each in self.model if not each.settled]
        for each in seen:
            known = self.model.messages[each.message.offset]
            assert each.state == message_state(self.stage.queue, each.message, self.stage.now_ms)
            assert (each.state.state == "leased") == (known.lease is not None)
            assert (each.state.state == "pending") == (known.pending is not None)
            assert (each.state.state == "dying") == known.dead_lettering

    @invariant()
    def views_are_the_models(self) -> None:
        check_settled_states(self.stage, self.model, knows_all=self.knows_settlements)
        check_scheduled(self.stage, self.model)

    @invariant()
    def log_is_held_for_what_is_not_due(self) -> None:
        not_due = [each.offset for each in self.model if not each.settled and each.due_ms > self.stage.now_ms]
        if not_due:
            retain_from_offset = self.stage.machine.retain_from_offset()
            assert retain_from_offset is not None
            assert retain_from_offset <= min(not_due)

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            try:
                self.drain()
            finally:
                self.limit.stop()

    def drain(self) -> None:
        """Whatever is unsettled can be leased, sooner or later."""
        for producer in {each.pending for each in self.model if each.pending is not None}:
            self.end_transaction(producer, False)
        policy = self.model.policy
        mine = subscription(
            ordering=policy.ordering, fair_by=policy.fair_by, priority_ageing_ms=policy.priority_ageing_ms,
            max_in_flight=policy.max_in_flight,
        )  # fmt: skip
        self.model.policy = mine.policy
        self.stage.set_subscriptions(mine)
        open_offsets = {each.offset for each in self.model if each.is_open}
        expiring = {each.offset for each in self.model if each.expires_ms and not each.restored}
        leased: set[int] = set()
        rounds = 2 * len(open_offsets) + 2
        for _ in range(rounds):
            self.time_passes(DRAIN_MS)
            now = self.lease_some(1_000, 30_000, 0)
            leased |= {each.message.offset for each in now}
            self.model.acknowledge([target(each) for each in now])
            self.submit(Acknowledge(subscription=SUBSCRIPTION, targets=tuple(map(target, now))))
        dead_lettering = {each.offset for each in self.model if each.dead_lettering}
        assert open_offsets - dead_lettering - leased <= expiring
        assert not [each for each in self.model if each.is_open], "something is left that nobody can lease"

    @property
    def log_start(self) -> int:
        return int(self.stage.messages.log.log_start_offset)

    @property
    def end(self) -> int:
        return int(self.stage.messages.term.high_watermark)

    def add(self, known: Known) -> None:
        known.offset = self.next_offset
        self.next_offset += 1
        self.model.messages[known.offset] = known

    def submit(self, command: QueueCommand[object]) -> object:
        """What is decided; that it is also what is told, once it is safe, is seen at the next flush."""
        told: list[object] = []
        decided = self.stage.submit(command, told.append)
        is_soft = isinstance(command, (LeaseMessages, Extend, Release)) and self.model.policy.ordering != "key"
        if self.stage.state.term.high_watermark < self.stage.state.log.log_end_offset and not is_soft:
            assert told == [] or isinstance(command, (Extend, Release)), "told before it was safe"
        self.unconfirmed.append((decided, told))
        self.remember()
        return decided

    def remember(self) -> None:
        self.moments.append(self.model.copy())

    def remember_last(self) -> None:
        """The model has caught up with what was decided last."""
        self.moments[-1] = self.model.copy()

    def confirm(self) -> None:
        assert all(told == [decided] for decided, told in self.unconfirmed), "the answer is not what was decided"
        self.unconfirmed = []
        self.moments = [self.model.copy()]

    def restarted(self) -> None:
        self.model.forget_leases()
        self.model.remembered = {}
        self.unconfirmed = []
        self.moments = [self.model.copy()]

    def found(self) -> dict[int, Hard]:
        machine, progress = self.stage.machine, self.stage.queue.progress
        return {offset: hard_of(machine, progress, offset) for offset in self.model.messages}

    def targets(self, picks: list[int]) -> tuple[Target, ...]:
        """Leases that hold, leases that may not hold any more, message ids, and things that never were."""
        live = [each.lease for each in self.model.leased if each.lease is not None]
        found = []
        for pick in picks:
            which, kind = divmod(pick, 8)
            if kind < 5 and live:
                found.append(target(live[which % len(live)]))
            elif kind < 6 and self.given:
                found.append(self.given[-1 - which % len(self.given)])
            elif kind < 7 and self.model.messages:
                found.append(Target(list(self.model.messages)[which % len(self.model.messages)]))
            else:
                found.append(Target(which) if which % 2 else Target(which % (self.end + 1), (99, which)))
        return tuple(each for each in found if each.offset >= self.log_start)

    def lease_some(self, count: int, visibility_ms: int, lowest: int) -> list[LeasedMessage]:
        policy, now_ms = self.model.policy, self.stage.now_ms
        queue = self.stage.queue  # Its consumers also hold messages that retention has removed from the log.
        held_count = len(queue.deliveries.leases) + len(queue.progress.pending)
        room = 0 if policy.paused else min(count, policy.max_in_flight - held_count)
        command = LeaseMessages(
            subscription=SUBSCRIPTION, count=count, max_bytes=1 << 20, visibility_ms=visibility_ms,
            lowest_priority=lowest,
        )  # fmt: skip
        reply = self.submit(command)
        assert isinstance(reply, list)
        assert len(reply) <= max(0, room)
        self.note_what_was_looked_at({each.message.offset for each in reply})
        sequence: list[Known] = []
        for each in reply:
            sequence.append(self.note_lease(each, now_ms + visibility_ms, sequence))
        self.check_order(sequence, len(sequence) < room, lowest)
        for each in sequence:
            if policy.delivery == "at_most_once":
                each.settle()
        self.remember_last()
        self.given += [target(each) for each in reply]
        return reply

    def note_what_was_looked_at(self, leased: set[int]) -> None:
        progress, now_ms = self.stage.queue.progress, self.stage.now_ms
        for each in self.model:
            if each.settled or each.offset in leased:
                continue
            _, is_settled, _, is_dead_lettering, *_ = hard_of(self.stage.machine, progress, each.offset)
            if is_settled:
                assert self.model.has_settled_rightly(each, now_ms)
                each.settle()
            elif is_dead_lettering and not each.dead_lettering:
                assert self.model.has_dead_lettered_rightly(each, now_ms)
                each.dead_lettering = True

    def note_lease(self, leased: LeasedMessage, ends_ms: int, before: list[Known]) -> Known:
        known = self.model.messages[leased.message.offset]
        assert self.model.may_lease(known, self.stage.now_ms), "it was not to be leased"
        assert self.model.is_first_of_key(known, {each.offset for each in before}), "another of its key comes first"
        assert (leased.expires_ms, leased.delivery_count) == (ends_ms, known.deliveries + 1)
        assert target(leased) not in self.given, "a lease was given twice"
        if self.model.policy.delivery != "at_most_once":
            known.lease, known.expired = leased, None
        else:
            known.settled = True
        return known

    def check_order(self, sequence: list[Known], is_short: bool, lowest: int) -> None:
        policy, now_ms = self.model.policy, self.stage.now_ms
        if self.is_bounded:
            return
        left = [each for each in self.model if self.model.may_lease(each, now_ms)]
        if policy.ordering == "key":
            can_all = policy.max_in_flight > 100 and lowest <= 4 and not self.log_start
            if is_short and can_all:
                check_batches(self.model, sequence, left)
        elif policy.priority_ageing_ms == 0:
            assert not (is_short and any(each.priority >= lowest for each in left))
            assert all(each.priority >= lowest for each in sequence)
            rest = [] if is_short else [each for each in left if each.priority >= lowest]
            check_priorities(sequence, rest, by_group=policy.fair_by is not None)
            drops_some = policy.filter is not None or self.log_start or any(each.expires_ms for each in self.model)
            if policy.fair_by is not None and not drops_some:
                check_turns(sequence)


def _number(leased: LeasedMessage) -> int:
    _, number = target(leased).lease or (0, 0)
    return number


def test_queue_does_what_its_model_says() -> None:
    limits = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(QueueStory, settings=limits)
