"""A subscription that pushes, its publisher and its target, and the promises made to them.

    PushedInOrder            a message is not sent before another one of its key that was sent was taken
    PushedWithinConcurrency  no process has more requests open than the push permits
    SignedByTheSecret        every request is signed
    OneIdForAllAttempts      the requests for a message have the same id, and no other request has it
    EveryMessagePushed       once all faults have ended, everything that was acknowledged to its producer was taken

Nothing else is promised while records of the queue may be lost; see `replica_ledger`.
"""

import asyncio
import hmac
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random

from conveyor.broker.queues.pushing.push_client import PushAnswer, PushFailed, PushRequest
from conveyor.kernel.errors import RequestError
from conveyor.queues.push.webhook_signature import secret_text
from simulation.cluster.fault_counts import FaultCounts
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.rest_requests import ask, unsettled_count
from simulation.ledger import InvariantBroken
from simulation.story_schedule import Step
from simulation.troubles import PUSH_TOPIC

PUSH_SUBSCRIPTION = "pushing"
MAX_CONCURRENCY = 3
_SECRET = bytes(range(32))
PUSH_POLICY: Mapping[str, object] = {
    "ordering": "key",
    "max_in_flight_per_key": 3,
    "retry": {"base_ms": 50, "cap_ms": 500},
    "push": {
        "url": "https://target.example/hook",
        "secret": secret_text(_SECRET),
        "max_concurrency": MAX_CONCURRENCY,
        "timeout_ms": 1_000,
    },
}
_KEYS = 5
_LONGEST_TROUBLE_MS = 4_000
_TRAVELS_S, _WORKS_S = 0.02, 0.1
_PUSHED_WITHIN_S = 300.0
_LOOK_EACH_S = 1.0


class PushLedger:
    """What the target has got; see the module's docstring. is_excused: whether records of the queue may be lost."""

    def __init__(self, is_excused: Callable[[], bool]) -> None:
        self._is_excused = is_excused
        self.published: set[str] = set()
        """The ids of acknowledged messages."""
        self._sent: dict[tuple[int, str], list[int]] = {}
        """The offsets of each key in the order in which they were sent first."""
        self._taken: set[str] = set()
        self._ids: dict[str, str] = {}
        self.broken: list[BaseException] = []

    def receive(self, request: PushRequest) -> str:
        """Check a request that has arrived. Returns the id of its message."""
        headers = dict(request.headers)
        name, webhook_id = headers["ce-id"], headers["webhook-id"]
        signed = f"{webhook_id}.{headers['webhook-timestamp']}.".encode() + request.body
        expected = b64encode(hmac.digest(_SECRET, signed, "sha256")).decode()
        if not hmac.compare_digest(headers["webhook-signature"], f"v1,{expected}"):
            self._break("SignedByTheSecret", f"{name} has the signature {headers['webhook-signature']}")
        if self._is_excused():
            return name
        if self._ids.setdefault(webhook_id, name) != name or self._ids.setdefault(name, webhook_id) != webhook_id:
            self._break("OneIdForAllAttempts", f"{name} and {self._ids[webhook_id]} have the id {webhook_id}")
        partition, offset = map(int, name.split("-"))
        sent = self._sent.setdefault((partition, headers["ce-partitionkey"]), [])
        if offset not in sent:
            waiting = [other for other in sent if other > offset or f"{partition}-{other}" not in self._taken]
            if waiting:
                self._break("PushedInOrder", f"{name} was sent before {waiting} of its key were taken")
            sent.append(offset)
        return name

    def take(self, name: str) -> None:
        """The target takes a message."""
        self._taken.add(name)

    def open(self, count: int) -> None:
        """A process has this many requests open."""
        if count > MAX_CONCURRENCY:
            self._break("PushedWithinConcurrency", f"{count} requests of one process, {MAX_CONCURRENCY} are permitted")

    def check_all(self, problem: str) -> None:
        """All faults have ended. problem: why messages are left; empty if none are."""
        lacking = self.published - self._taken
        if problem or (lacking and not self._is_excused()):
            raise InvariantBroken("EveryMessagePushed", problem or f"not taken: {sorted(lacking)[:10]}")

    def _break(self, invariant: str, detail: str) -> None:
        self.broken.append(InvariantBroken(invariant, detail))


class SimulatedTarget:
    """The server at the URL of the push: it takes what it gets, except while it has a trouble."""

    def __init__(self, seed: object, ledger: PushLedger, counts: FaultCounts) -> None:
        self._chance = Random(f"{seed} push target")
        self._ledger = ledger
        self._counts = counts
        self._trouble = ""
        self._ends_s = 0.0

    def client(self) -> "_SimulatedPushClient":
        """Return the client of a process."""
        return _SimulatedPushClient(self)

    async def execute(self, step: Step, door: ClientDoor) -> None:
        """Have a trouble for a while: that of the step's action."""
        self._trouble = step.action
        self._ends_s = asyncio.get_running_loop().time() + step.number % _LONGEST_TROUBLE_MS / 1_000

    def recover(self) -> None:
        """Have no trouble any more."""
        self._trouble = ""

    async def answer(self, request: PushRequest, open_count: int) -> PushAnswer:
        await asyncio.sleep(self._chance.random() * _TRAVELS_S)
        trouble = self._trouble if asyncio.get_running_loop().time() < self._ends_s else ""
        if trouble == "refuse":
            raise PushFailed("no connection", is_sent=False)
        self._ledger.open(open_count)
        name = self._ledger.receive(request)
        await asyncio.sleep(self._chance.random() * _WORKS_S)
        if trouble:
            self._counts.note(f"push met {trouble}")
        if trouble == "hang":
            await asyncio.get_running_loop().create_future()
        if trouble == "fail":
            return PushAnswer(status=500)
        if trouble == "overload":
            return PushAnswer(status=429, retry_after=("1",))
        self._ledger.take(name)
        self._counts.note("pushed")
        await asyncio.sleep(self._chance.random() * _TRAVELS_S)
        return PushAnswer(status=204)


class _SimulatedPushClient:
    """The client of one process."""

    def __init__(self, target: SimulatedTarget) -> None:
        self._target = target
        self._open_count = 0

    async def post(self, request: PushRequest) -> PushAnswer:
        self._open_count += 1
        try:
            return await self._target.answer(request, self._open_count)
        finally:
            self._open_count -= 1

    def close(self) -> None:
        """Do nothing: it has no connections."""


class PushPublisher:
    """Publishes messages with keys, over REST through any broker."""

    def __init__(self, ledger: PushLedger) -> None:
        self._ledger = ledger
        self._count = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
        messages = [self._message(step.number + number) for number in range(1 + step.number % 4)]
        with suppress(Disconnected, RequestError):
            answer = await ask(door.any(), "POST", f"/topics/{PUSH_TOPIC}/messages:batch", {"messages": messages})
            self._ledger.published |= {one["message_id"] for one in answer["results"] if one["status"] == "ok"}

    def _message(self, number: int) -> dict[str, str]:
        self._count += 1
        return {"payload": f"pushed {self._count}", "key": f"key-{number % _KEYS}"}


class Pushes:
    """The push of a story: its clients, and the check at its end."""

    def __init__(self, ledger: PushLedger, target: SimulatedTarget) -> None:
        self._ledger = ledger
        self._target = target
        self.clients: dict[str, PushPublisher | SimulatedTarget] = {
            "push-publisher": PushPublisher(ledger),
            "push-target": target,
        }

    async def check_the_end(self, door: ClientDoor) -> None:
        """Everything is taken within a while. All brokers run."""
        self._target.recover()
        loop = asyncio.get_running_loop()
        ends_s, left = loop.time() + _PUSHED_WITHIN_S, 1
        while left and loop.time() < ends_s:
            await asyncio.sleep(_LOOK_EACH_S)
            with suppress(Disconnected, RequestError):
                left = await unsettled_count(door.any(), PUSH_SUBSCRIPTION)
        self._ledger.check_all(f"{left} messages are left after {_PUSHED_WITHIN_S} s" if left else "")
