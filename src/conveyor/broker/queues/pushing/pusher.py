"""Delivers the messages of one subscription that this broker leads to the target of its push.

    messages arrive, a request ends, the breaker lets requests through, there is room again -> as many messages are
    leased as requests may begin -> a task for each request -> its verdict settles the messages, as a client does

A lease lasts longer than a request may take, so a message is in two requests at a time only after its leader has
changed. The rights of the push's owner are looked at before each lease.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from conveyor.broker.answers import ignored
from conveyor.broker.queues.leasing.own_leases import LeaseRequest
from conveyor.broker.queues.pushing.push_delivery import PushDelivery
from conveyor.broker.queues.pushing.push_secrets import SecretUnreadable
from conveyor.broker.queues.pushing.push_status import DENIED, PAUSED, PUSHING, UNREADABLE, PushStatus
from conveyor.broker.queues.pushing.push_tools import PushTools
from conveyor.broker.queues.settlements import MAX_TARGETS
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import RequestError
from conveyor.queues.push.circuit_breaker import CircuitBreaker
from conveyor.queues.push.concurrency_limit import ConcurrencyLimit
from conveyor.queues.push.push_target import BATCH, PushTarget
from conveyor.queues.push.push_url import parse_push_url
from conveyor.queues.push.push_verdict import Settlement, Verdict
from conveyor.queues.queue_commands import LeasedMessage
from conveyor.queues.subscription.policy import MAX_IN_FLIGHT_PER_KEY, Subscription

log = logging.getLogger(__name__)

CLIENT_ID = "push"
"""What a push calls itself as a consumer."""

_LEASE_MARGIN_MS = 15_000
"""The time that a lease has beyond that of its request: to encode it, and to settle its messages."""
_RETRY_MS = 1_000
"""The pause after a lease that a broker has refused."""
_MAX_AT_ONCE = 100


class Pusher:
    """See the module's docstring. Call `wake` when there may be messages. gone: called when a target is gone (410)."""

    def __init__(
        self, tools: PushTools, subscription: Subscription, gone: Callable[[Subscription, PushTarget], None]
    ) -> None:
        assert subscription.push is not None
        self._tools = tools
        self._gone = gone
        self._subscription = subscription
        self._target: PushTarget = subscription.push
        self._url = parse_push_url(self._target.url)
        self._limit = ConcurrencyLimit(1)
        self._acks: list[str] = []
        """The ack ids of messages that are acknowledged together, at the end of this turn of the event loop."""
        self._alarm = Alarm(tools.clock, self.wake)
        self._is_stopped = self._is_woken = self._is_leasing = False
        self._state = PUSHING
        self._delivered = self._failed = self._released = 0
        self._last_error: tuple[str, int] | None = None
        self._secrets: tuple[bytes, ...] | None = None
        self._gone_target: PushTarget | None = None
        """The target that is gone, until the metadata says so too."""
        self._breaker, self._leave_breaker = self._use_breaker()

    @property
    def subscription(self) -> Subscription:
        return self._subscription

    def use(self, subscription: Subscription) -> None:
        """Go on with a changed target, or a changed policy. Requests that are under way end as they have begun."""
        assert subscription.push is not None
        before, self._subscription, self._target = self._target, subscription, subscription.push
        if before.url != self._target.url:
            self._url = parse_push_url(self._target.url)
            self._leave_breaker()
            self._breaker, self._leave_breaker = self._use_breaker()
        if before.secrets != self._target.secrets:
            self._secrets = None
        if self._target.paused is not None:
            self._gone_target = None
        self.wake()

    def stop(self) -> None:
        """Begin no more requests. Those that are under way end, and settle their messages."""
        self._is_stopped = True
        self._alarm.end()
        self._leave_breaker()

    def wake(self) -> None:
        """Look for messages to send, in the next turn of the event loop."""
        if not (self._is_woken or self._is_stopped):
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._look)

    def _wake_for_room(self) -> None:
        """Look whether there is something for the room in the budget, or leave it to the next."""
        if self._is_stopped:
            self._tools.budget.wake_next()
        else:
            self.wake()

    def status(self) -> PushStatus:
        """Return the state of the push on this broker."""
        now_ms = self._tools.clock.steady_ms()
        self._note_state(self._present_state())
        next_ms = self._breaker.next_ms(now_ms)
        error, error_ms = (None, None) if self._last_error is None else self._last_error
        return PushStatus(
            node_id=self._tools.node_id,
            state=self._state,
            breaker=self._breaker.state(now_ms),
            retry_in_ms=None if next_ms is None else next_ms - now_ms,
            concurrency=self._limit.limit,
            in_flight=self._limit.open_count,
            delivered=self._delivered,
            failed=self._failed,
            released=self._released,
            last_error=error,
            last_error_ms=error_ms,
        )

    def _use_breaker(self) -> tuple[CircuitBreaker, Callable[[], None]]:
        breaker, end_use = self._tools.breakers.use(self._target.url)
        unlisten = breaker.changed.listen(lambda _: self.wake())

        def leave() -> None:
            unlisten()
            end_use()

        return breaker, leave

    def _look(self) -> None:
        """Lease messages if requests may begin. Whether it uses the room in the budget or not, others may follow."""
        self._is_woken = False
        if self._is_leasing:
            return  # The answer to the lease goes on.
        self._note_state(self._present_state())
        count = 0 if self._is_stopped or self._state != PUSHING else self._free_count()
        if count > 0:
            self._lease(count)
        else:
            self._tools.budget.wake_next()

    def _lease(self, count: int) -> None:
        self._is_leasing = True
        target = self._target
        self._tools.rights.may_read(self._subscription, target.owner, is_noted=True)
        is_batch = target.mode == BATCH
        request = LeaseRequest(
            caller=target.owner.caller,
            subscription=self._subscription,
            max_messages=target.batch_size if is_batch else min(count, _MAX_AT_ONCE),
            visibility_ms=target.timeout_ms + _LEASE_MARGIN_MS,
            client_id=CLIENT_ID,
            max_bytes=self._tools.budget.free_bytes(),
            max_per_key=MAX_IN_FLIGHT_PER_KEY if is_batch else 1,  # Requests that are open together have no order.
        )
        self._tools.leases.take_here(request, partial(self._leased, target))

    def _free_count(self) -> int:
        """Return how many requests may begin now. If none may, something wakes the pusher when one may."""
        now_ms = self._tools.clock.steady_ms()
        permitted = self._breaker.permits(now_ms)
        if permitted == 0:
            next_ms = self._breaker.next_ms(now_ms)
            if next_ms is not None:
                self._alarm.after(next_ms - now_ms)
            return 0
        self._limit.maximum = self._tools.share_of(self._subscription, self._target.max_concurrency)
        count = self._limit.free_count if permitted is None else min(permitted, self._limit.free_count)
        if count and not self._tools.budget.free_count():
            self._tools.budget.wait(self._wake_for_room)
        return min(count, self._tools.budget.free_count())

    def _leased(self, target: PushTarget, answer: list[LeasedMessage] | RequestError) -> None:
        """Send what was leased for a target, unless a client has changed the target meanwhile."""
        self._is_leasing = False
        if isinstance(answer, RequestError):
            self._note_error(f"messages cannot be leased: {answer.message}")
            self._alarm.after(_RETRY_MS)
        elif self._is_stopped or target != self._target:
            self._tools.leases.give_back(target.owner.caller, self._subscription.name, answer)
            self.wake()
        elif answer:
            for leases in [answer] if target.mode == BATCH else [[lease] for lease in answer]:
                self._begin(leases)
            self.wake()  # There may be more, in other partitions.
        self._tools.budget.wake_next()

    def _begin(self, leases: Sequence[LeasedMessage]) -> None:
        assert self._secrets is not None, "the state is looked at before a lease"
        weight_bytes = sum(lease.message.weight_bytes for lease in leases)
        self._tools.budget.begin(weight_bytes)
        breaker, target = self._breaker, self._target
        number, period = self._limit.began(), breaker.began(self._tools.clock.steady_ms())
        delivery = PushDelivery(self._tools, self._subscription, target, self._url, self._secrets, leases)
        task = self._tools.tasks.start(delivery.run(), self._note_bug)
        task.add_done_callback(partial(self._ended, target, leases, weight_bytes, number, breaker, period))

    def _ended(
        self,
        target: PushTarget,
        leases: Sequence[LeasedMessage],
        weight_bytes: int,
        number: int,
        breaker: CircuitBreaker,
        period: int,
        task: "asyncio.Task[Verdict]",
    ) -> None:
        """Settle the messages of a request, and note what its end says about the target."""
        if task.cancelled() or task.exception() is not None:  # The leases end by themselves.
            self._limit.ended()
            breaker.ended(period)
            return self._tools.budget.end(weight_bytes)
        verdict = task.result()
        if verdict.is_overloaded:
            self._limit.overloaded(number)
        elif verdict.settlement is Settlement.ACK:
            self._limit.succeeded()
        else:
            self._limit.ended()
        self._settle(target, leases, verdict)
        self._note_target(breaker, period, verdict)
        self._tools.budget.end(weight_bytes)
        self.wake()

    def _note_target(self, breaker: CircuitBreaker, period: int, verdict: Verdict) -> None:
        now_ms = self._tools.clock.steady_ms()
        if verdict.hold_ms:
            breaker.hold(now_ms + verdict.hold_ms)
        if verdict.has_failed:
            breaker.failed(period, now_ms)
        elif verdict.is_overloaded or verdict.is_gone:
            breaker.ended(period)
        else:
            breaker.succeeded(period)

    def _settle(self, target: PushTarget, leases: Sequence[LeasedMessage], verdict: Verdict) -> None:
        if verdict.error is not None:
            self._note_error(verdict.error)
        name, caller, targets = self._subscription.name, target.owner.caller, [lease.ack_id for lease in leases]
        if verdict.settlement is Settlement.RELEASE:
            self._released += len(leases)
            self._tools.leases.give_back(caller, name, leases)
        elif verdict.settlement is Settlement.ACK:
            self._delivered += len(leases)
            if not self._acks:
                asyncio.get_running_loop().call_soon(self._acknowledge)
            self._acks += targets
        else:
            self._failed += len(leases)
            self._tools.settle(partial(self._tools.settlements.nack, caller, name, targets, None, ignored))
        if verdict.is_gone:
            self._gone_target = target
            self._gone(self._subscription, target)

    def _acknowledge(self) -> None:
        """Acknowledge what the target has taken in this turn: with one record in each partition."""
        acks, self._acks = self._acks, []
        name, caller = self._subscription.name, self._target.owner.caller
        for start in range(0, len(acks), MAX_TARGETS):
            targets = acks[start : start + MAX_TARGETS]
            self._tools.settle(partial(self._tools.settlements.ack, caller, name, targets, ignored))

    def _present_state(self) -> str:
        if self._target.paused is not None or self._target == self._gone_target:
            return PAUSED
        if not self._tools.rights.may_read(self._subscription, self._target.owner):
            return DENIED
        if self._secrets is None:
            try:
                self._secrets = self._tools.secrets.read(self._subscription.name, self._target.secrets)
            except SecretUnreadable as error:
                self._note_error(str(error))
                return UNREADABLE
        return PUSHING

    def _note_state(self, state: str) -> None:
        if state != self._state:
            log.info("push state=%s before=%s subscription=%s", state, self._state, self._subscription.name)
            if state == DENIED:
                self._tools.rights.may_read(self._subscription, self._target.owner, is_noted=True)
            self._state = state

    def _note_bug(self, error: Exception) -> None:
        log.error("push request failed subscription=%s", self._subscription.name, exc_info=error)
        self._note_error("the request could not be made: see the log of the broker")

    def _note_error(self, error: str) -> None:
        self._last_error = error, self._tools.clock.now_ms()
