"""The simulation goes through the doors: bugs of the doors, of the hop between brokers, of groups and of requests in
transactions break an invariant within so many stories.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest

from conveyor.broker.clients.access_control import AccessControl
from conveyor.broker.clients.audit_event import AuditEvent
from conveyor.broker.clients.audit_writer import AuditWriter
from conveyor.broker.clients.credentials import Credentials
from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.produce.acknowledgement import Published
from conveyor.broker.produce.leader_publisher import LeaderPublisher
from conveyor.broker.transaction_requests.transaction_request import Acknowledgement
from conveyor.broker.transaction_requests.transaction_run import TransactionRunner
from conveyor.groups.classic.classic_group import ClassicGroup
from conveyor.groups.classic.classic_groups import ClassicGroups
from conveyor.groups.classic.classic_member import Member
from conveyor.groups.consumer import consumer_groups, group_draft
from conveyor.groups.consumer.group_draft import reconciled
from conveyor.groups.known_topics import Assigned
from conveyor.groups.records.consumer_member import Current
from conveyor.http.endpoints.endpoint_application import RoutedCall
from conveyor.http.engine.http_request import Request
from conveyor.http.engine.request_parser import RequestParser
from conveyor.http_api.application import RestSite
from conveyor.kafka_api.apis.records import k01_fetch
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kafka_api.wire.connection import KafkaConnection
from conveyor.kafka_api.wire.sasl.scram_exchange import ScramExchange
from conveyor.kernel.access.acl import Acl, Permission
from conveyor.kernel.access.acl_rules import AclRules
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.access.scram import ScramCredential, ScramMechanism
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.delivery.ordering import KeyOrder, _Line
from conveyor.queues.delivery.target_leases import FoundLease, TargetLeases
from conveyor.queues.queue_commands import SettleMessages, Target
from conveyor.server.kafka_listener import KafkaListener
from simulation.story_rules import RULES
from simulation.story_schedule import Step, StorySchedule
from simulation.story_topics import QUEUE_TOPIC
from tests.callers import answer_of
from tests.simulation.seeds import Found, Plant, troubled
from tests.sweep import all_but

SEEDS = 300


def publish_again_by_the_hop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker sends a batch once more whose answer is lost, although it may be stored."""

    async def send(self: LeaderPublisher, *arguments: Any) -> list[Published]:
        try:
            return await plain_send(self, *arguments)
        except RequestError as error:
            if error.kind is not ErrorKind.REQUEST_TIMED_OUT:
                raise
            return await plain_send(self, *arguments)

    plain_send = LeaderPublisher._send
    monkeypatch.setattr(LeaderPublisher, "_send", send)


def answer_as_soon_as_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection sends answers when they are ready, not in the order of the requests."""

    def answered(self: KafkaConnection, call: KafkaCall) -> None:
        self._calls.remove(call)
        self._calls.appendleft(call)
        plain_answered(self, call)

    plain_answered = KafkaConnection._answered
    monkeypatch.setattr(KafkaConnection, "_answered", answered)


def serve_the_last_request_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP engine serves pipelined requests in the wrong order."""

    class Stack(deque[Request]):
        def popleft(self) -> Request:
            return self.pop()

    def begin(self: RequestParser) -> None:
        plain_begin(self)
        self.complete = Stack()

    plain_begin = RequestParser.__init__
    monkeypatch.setattr(RequestParser, "__init__", begin)


def accept_commits_of_earlier_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member may commit whatever generation it is of (classic protocol)."""

    def member(self: ClassicGroups, command: Any) -> tuple[ClassicGroup, Member]:
        group = self._group(command.group_id)
        return group, group.members.find(command.member_id, command.group_instance_id)

    monkeypatch.setattr(ClassicGroups, "_member", member)


def accept_commits_of_earlier_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member may commit whatever its epoch is (KIP-848)."""
    monkeypatch.setattr(consumer_groups, "_check_member_epoch", lambda *_: None)


def assign_before_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member gets a partition that another one has not given up yet (KIP-848)."""

    def advanced(current: Current, target: Assigned, epoch: int, owned: Assigned | None, _: object) -> Current:
        return reconciled(current, target, epoch, owned, lambda _: False)

    monkeypatch.setattr(group_draft, "reconciled", advanced)


def commit_without_the_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction of one request is committed although an acknowledgement was refused."""

    async def acknowledge(self: TransactionRunner, *arguments: Any) -> None:
        try:
            await plain_acknowledge(self, *arguments)
        except RequestError:
            return

    plain_acknowledge = TransactionRunner._acknowledge
    monkeypatch.setattr(TransactionRunner, "_acknowledge", acknowledge)


def acknowledge_outside_of_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leases of a transaction are acknowledged at once, also if it is aborted afterwards."""

    async def acknowledge(
        self: TransactionRunner, caller: Caller, _: object, wanted: Sequence[Acknowledgement]
    ) -> None:
        for one in wanted:
            await answer_of(self._settlements.ack, caller, one.subscription, one.targets)

    monkeypatch.setattr(TransactionRunner, "_acknowledge", acknowledge)


def nack_again_by_the_hop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker sends a nack of messages once more whose answer is lost, although others may have leased them since."""
    monkeypatch.setattr(SettleMessages, "is_repeatable", True)


def keep_the_clients_of_changed_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection stays open when its user is removed or gets another password."""
    monkeypatch.setattr(KafkaListener, "_log_out", lambda *_: None)


def keep_the_waiting_requests_of_changed_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request over REST goes on waiting when its user is removed or gets another password."""
    monkeypatch.setattr(RestSite, "_log_out", lambda *_: None)


def remember_passwords_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password that was right over REST is not checked again."""
    monkeypatch.setattr(Credentials, "held", lambda *_: ())


def keep_the_rights_of_a_waiting_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease decides once whether it may be given, and not again when it wakes."""

    def check(self: RoutedCall, *, is_noted: bool) -> None:
        if is_noted:
            plain_check(self, is_noted=is_noted)

    plain_check = RoutedCall._check
    monkeypatch.setattr(RoutedCall, "_check", check)


def keep_the_rights_of_a_waiting_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch decides once what it may read, and not again when it wakes."""
    decided: dict[tuple[KafkaCall, str], RequestError | None] = {}

    def refusal(call: KafkaCall, topic: str) -> RequestError | None:
        if (call, topic) not in decided:
            decided[call, topic] = plain_refusal(call, topic)
        return decided[call, topic]

    plain_refusal = k01_fetch._refusal
    monkeypatch.setattr(k01_fetch, "_refusal", refusal)


def keep_the_rights_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker does not look at changed ACLs before it starts again."""
    monkeypatch.setattr(AccessControl, "_observe", lambda *_: None)


def allow_before_denying(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ACL that allows wins over one that denies."""

    def meant(self: AclRules, *arguments: Any) -> Iterator[Acl]:
        return (acl for acl in plain_meant(self, *arguments) if acl.permission is Permission.ALLOW)

    plain_meant = AclRules._meant
    monkeypatch.setattr(AclRules, "_meant", meant)


def forget_events_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker does not write events of the audit again that it could not write."""

    async def publish(self: AuditWriter, events: list[AuditEvent]) -> list[AuditEvent]:
        await plain_publish(self, events)
        return []

    plain_publish = AuditWriter._publish
    monkeypatch.setattr(AuditWriter, "_publish", publish)


def let_in_by_the_password_of_the_first_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The credential may change between the two messages of SCRAM."""

    def begin(
        self: ScramExchange,
        mechanism: ScramMechanism,
        lookup: Callable[[str], tuple[ScramCredential, bool]],
        nonce: str,
    ) -> None:
        plain_begin(self, mechanism, cache(lookup), nonce)

    plain_begin = ScramExchange.__init__
    monkeypatch.setattr(ScramExchange, "__init__", begin)


def learn_late_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker reads what others have changed two seconds after the store has said that there is more."""

    def head_changed(self: Metadata) -> None:
        asyncio.get_running_loop().call_later(2, plain_changed, self)

    plain_changed = Metadata._head_changed
    monkeypatch.setattr(Metadata, "_head_changed", head_changed)


def with_changing_passwords(seed: int) -> StorySchedule:
    """Clients log in by SCRAM while the password changes: drawn too rarely."""
    chance = Random(seed)
    steps = [Step(0, RULES, "users", 1)]
    for at_ms in range(500, 8_000, 50):
        steps.append(Step(at_ms, "user-admin", "set_password", chance.choice((0, 2))))
        steps.append(Step(at_ms + chance.randrange(50), "user-1", "log_in", 32 + chance.choice((0, 1, 2, 16, 17, 18))))
    return StorySchedule(seed, tuple(sorted(steps)))


def with_changing_rights(seed: int) -> StorySchedule:
    """A user waits for records at each broker while the right to read them goes: drawn too rarely."""
    steps = [Step(0, RULES, "users", 1), Step(300, "user-admin", "set_password", 0)]
    for at_ms in range(500, 8_000, 1_500):
        steps.append(Step(at_ms, "user-admin", "add_acl", 0))
        for broker in range(3):
            user = f"user-{broker + 1}"
            steps += [Step(at_ms + 50, user, "log_in", broker), Step(at_ms + 100, user, "read", broker)]
        steps.append(Step(at_ms + 150, "user-admin", "remove_acl", 0))
        for delay_ms in range(200, 500, 50):
            steps.append(Step(at_ms + delay_ms, "user-admin", "write", 0))
    return StorySchedule(seed, tuple(sorted(steps)))


def with_changing_users(seed: int) -> StorySchedule:
    """A user waits for messages at each broker, over REST, while the user or the right goes: drawn too rarely."""
    steps = [Step(0, RULES, "users", 1), Step(250, "user-admin", "set_password", 0)]
    for turn, at_ms in enumerate(range(500, 8_000, 1_500)):
        steps += [Step(at_ms, "user-admin", "set_password", 0), Step(at_ms, "user-admin", "add_acl", 0)]
        steps += [Step(at_ms + 350, f"rest-user-{number + 1}", "lease", number + turn % 2) for number in range(2)]
        steps.append(Step(at_ms + 500, "user-admin", ("remove_user", "remove_acl")[turn % 2], 0))
        for delay_ms in range(550, 900, 50):
            steps.append(Step(at_ms + delay_ms, "user-admin", "write", 0))
    return StorySchedule(seed, tuple(sorted(steps)))


def with_broken_links(seed: int) -> StorySchedule:
    """The links between brokers break often, while a client publishes through any of them: drawn too rarely."""
    chance = Random(seed)
    steps = [Step(0, RULES, "rest", 1)]
    for at_ms in range(0, 8_000, 50):
        steps.append(Step(at_ms, "rest-publisher", "publish", chance.getrandbits(15) * 2))
        steps.append(Step(at_ms + chance.randrange(50), "network", "reset", chance.getrandbits(16)))
    return StorySchedule(seed, tuple(sorted(steps)))


def with_nacked_messages(seed: int) -> StorySchedule:
    """The links between brokers break often, while a worker nacks messages, and another one leases them for long."""
    chance = Random(seed)
    steps = [Step(0, RULES, QUEUE_TOPIC, 1), Step(0, "publisher", "produce", 60), Step(0, "publisher", "produce", 61)]
    for at_ms in range(500, 8_000, 50):
        steps.append(Step(at_ms, "worker-1", "lease", 18_000))
        steps.append(Step(at_ms, "worker-1", "nack_messages", 0))
        steps.append(Step(at_ms, "worker-2", "lease", 18_000))
        steps.append(Step(at_ms + chance.randrange(50), "network", "reset", chance.getrandbits(16)))
    return StorySchedule(seed, tuple(sorted(steps)))


def lease_keys_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call joins the messages of a key that another call has leased."""

    def may_join(self: KeyOrder, line: Any, offset: int) -> bool:
        return len(line.out) < self._limit

    monkeypatch.setattr(KeyOrder, "_may_join", may_join)


def pass_by_returned_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that has come back holds back nothing: later ones of its key are leased before it."""
    monkeypatch.setattr(_Line, "has_earlier", lambda *_: False)


def accept_late_acks_of_any_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late ack settles its message also if another consumer has leased it since."""

    def find(self: TargetLeases, target: Target) -> FoundLease:
        lease = self._deliveries.leases.get(target.offset) or self._deliveries.ended.expired(target.offset)
        return self._find_to_acknowledge(target) if lease is None else lease

    monkeypatch.setattr(TargetLeases, "_find_to_acknowledge_late", find)


PLANTED: dict[Plant, Found] = {
    keep_the_rights_of_a_waiting_fetch: Found(0, {"NothingAfterItsRight"}, with_changing_rights),
    keep_the_rights_of_the_start: Found(0, {"NothingAfterItsRight", "RightsHold"}, troubled("users")),
    allow_before_denying: Found(0, {"NothingAfterItsRight"}, troubled("users")),
    forget_events_that_cannot_be_written: Found(0, {"DenialsAreAudited"}, troubled("users")),
    keep_the_waiting_requests_of_changed_users: Found(0, {"NothingAfterItsUser"}, with_changing_users),
    keep_the_rights_of_a_waiting_lease: Found(0, {"NothingAfterItsRight"}, with_changing_users),
    learn_late_of_changes: Found(0, {"ChangesArrive"}, with_changing_users),
    remember_passwords_for_ever: Found(0, {"LoginsHold"}, troubled("users")),
    keep_the_clients_of_changed_users: Found(0, {"NothingAfterItsUser"}, troubled("users")),
    let_in_by_the_password_of_the_first_message: Found(0, {"LoginsHold"}, with_changing_passwords),
    publish_again_by_the_hop: Found(0, {"OncePerRequest"}, with_broken_links),
    nack_again_by_the_hop: Found(5, {"NoDoubleLease"}, with_nacked_messages),
    answer_as_soon_as_possible: Found(0, {"AnswersInOrder"}),
    serve_the_last_request_first: Found(0, {"AnswersInOrder"}, troubled("rest")),
    accept_commits_of_earlier_generations: Found(4, {"CommitsHold"}, troubled("members")),
    accept_commits_of_earlier_epochs: Found(0, {"CommitsHold"}, troubled("members")),
    assign_before_the_release: Found(0, {"OwnedOnce"}, troubled("members")),
    lease_keys_in_flight: Found(0, {"OneBatchPerKey", "KeysInOrder"}, troubled("ordered_keys")),
    pass_by_returned_messages: Found(0, {"KeysInOrder"}, troubled("ordered_keys")),
    accept_late_acks_of_any_lease: Found(0, {"LateAckByLastLease"}, troubled("ordered_keys")),
    commit_without_the_acknowledgements: Found(1, {"ProcessedOnce", "NoResurrectedAck"}, troubled("rest")),
    acknowledge_outside_of_the_transaction: Found(1, {"ProcessedOnce", "NoResurrectedAck"}, troubled("rest")),
}


PLANTS = all_but(PLANTED, forget_events_that_cannot_be_written)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    PLANTED[plant].check(SEEDS)
