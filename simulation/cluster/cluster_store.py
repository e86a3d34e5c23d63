"""A session with a metadata store that several simulated brokers share, which ends if its server hears nothing of it.

    in contact ---> out of contact (paused, cut off, dead) ---> the session ends after its timeout: ephemeral nodes go
         ^                   |                                             |
         +---- SUSPENDED, same session <--- contact ---> SUSPENDED, LOST, a new session

The server ends a session by its own clock; the client learns of it when it is in contact again. A client that is cut
off notices it at once or after two thirds of the timeout; until then its calls wait.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import SessionState, Versioned
from conveyor.kernel.store_watches import Watch
from conveyor.testing.memory_store import MemoryTree
from simulation.cluster.flaky_store import FlakyStore

_APART_S = 1e-5
"""Timers that are closer to each other may be called in any order."""


class ClusterStore(FlakyStore):
    """See the module's docstring. Watches and listeners are called a moment later, in the process that has set them.

    longest_hop_s: of a request or a reply. longest_watch_s: until a watch is called. As in ZooKeeper, replies and the
    calls of watches arrive in the order in which the server has sent them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        chance: Random,
        tree: MemoryTree,
        session_timeout_ms: int,
        *,
        longest_hop_s: float = 0.003,
        longest_watch_s: float = 0.0,
    ) -> None:
        super().__init__(chance, session_timeout_ms, tree)
        self.longest_hop_s = self._usual_hop_s = longest_hop_s
        self._longest_watch_s = longest_watch_s
        self._arrival_s = 0.0
        """The time at which the last reply arrives or the last watch is called."""
        self._loop = loop
        self._server = copy_context()
        """The context of the server's timers: not that of the process, which they outlive."""
        self._obstacles: set[str] = set()
        self._end_timer: asyncio.TimerHandle | None = None
        self._notice_timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._is_abandoned = False
        self._is_clear = asyncio.Event()
        """Not set while the client waits for replies that cannot come, and has not noticed it."""

    @property
    def is_reachable(self) -> bool:
        """True if the server hears of this session."""
        return not self._obstacles

    @property
    def is_sound(self) -> bool:
        """True if calls are answered as fast as usual."""
        return super().is_sound and not self._obstacles and self.longest_hop_s <= self._usual_hop_s

    def listen(self, changed: Callable[[SessionState], None]) -> None:
        context = copy_context()
        super().listen(lambda state: self._later(lambda: changed(state), context))

    def lose_contact(self, obstacle: str, *, is_noticed: bool = False) -> None:
        """Let the server hear nothing more, for this reason. is_noticed: the client notices its broken connection."""
        if not self._obstacles:
            self._end_timer = self._loop.call_later(
                self.session_timeout_ms / 1000, self._end_at_server, context=self._server
            )
            self._is_clear.clear()
        self._obstacles.add(obstacle)
        if is_noticed and self._notice_timer is None:
            longest_s = self.session_timeout_ms / 1500
            delay_s = self._chance.choice((0.0, self._chance.uniform(0, longest_s)))
            self._notice_timer = self._loop.call_later(delay_s, self._suspend, context=self._server)

    def regain_contact(self, obstacle: str) -> None:
        """End this reason. Once there is none left, the client continues its session or begins a new one."""
        if obstacle not in self._obstacles:
            return
        self._obstacles.discard(obstacle)
        if self._obstacles or self._is_abandoned:
            return
        self._is_clear.set()
        for timer in (self._end_timer, self._notice_timer):
            if timer is not None:
                timer.cancel()
        self._end_timer = self._notice_timer = None
        if self._has_ended:
            self._suspend()
            self._has_ended = False
            self.expire()
        if self.session_state is not SessionState.CONNECTED:
            self.reconnect()

    def abandon(self) -> None:
        """Note that the process has died. The server ends the session later."""
        super().abandon()
        self.lose_contact("dead")
        self._is_abandoned = True

    async def get(self, path: str, changed: Watch | None = None) -> Versioned | None:
        return await super().get(path, self._notified(changed))

    async def children(self, path: str, changed: Watch | None = None) -> list[str]:
        await self._hop()
        names = await super().children(path, self._notified(changed))
        await self._reply()
        return names

    async def close(self) -> None:
        await super().close()
        self.abandon()

    async def _hop(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, self.longest_hop_s))
        await self._wait_for_contact()

    async def _reply(self) -> None:
        await asyncio.sleep(self._arrives_in_s(self._chance.uniform(0, self.longest_hop_s)))
        await self._wait_for_contact()

    def _arrives_in_s(self, delay_s: float) -> float:
        """Return after what time that is sent now arrives, which is not before what was sent earlier."""
        now_s = self._loop.time()
        self._arrival_s = max(self._arrival_s + _APART_S, now_s + delay_s)
        return self._arrival_s - now_s

    async def _wait_for_contact(self) -> None:
        if self._obstacles:
            await self._is_clear.wait()
            raise StorageFailure("metadata store: the connection is lost")

    def _end_at_server(self) -> None:
        self._has_ended = True
        self.shared.end_session(self)

    def _suspend(self) -> None:
        if self.session_state is SessionState.CONNECTED and not self._is_abandoned:
            self.cut()
        self._is_clear.set()

    def _notified(self, changed: Watch | None) -> Watch | None:
        if changed is None:
            return None
        context = copy_context()
        return lambda: self._notify(changed, context)

    def _notify(self, changed: Watch, context: Context) -> None:
        """Call a watch after those that were due before it."""
        delay_s = self._arrives_in_s(self._chance.uniform(0, self._longest_watch_s))
        self._loop.call_later(delay_s, changed, context=context.copy())

    def _later(self, callback: Callable[[], None], context: Context) -> None:
        self._loop.call_soon(callback, context=context.copy())
