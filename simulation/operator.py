"""The operator of the simulated broker: injects faults, restarts the broker after each, and requests housekeeping."""

import asyncio
import contextlib

from conveyor.kernel.errors import RequestError
from simulation.actors import LOG_TOPIC, PARTITIONS
from simulation.callers import CALLER
from simulation.flaky_store import StoreFault
from simulation.ledger import LogLedger
from simulation.simulated_broker import Disconnected, SimulatedBroker
from simulation.story_schedule import Step

_TIMEOUT_MS = 1_000


class Operator:
    """Executes the faults of a schedule. `happened`: the number of executions of each action."""

    def __init__(self, ledger: LogLedger) -> None:
        self.happened: dict[str, int] = {}
        self._ledger = ledger

    async def execute(self, step: Step, broker: SimulatedBroker) -> None:
        self.happened[step.action] = self.happened.get(step.action, 0) + 1
        action = {
            "retain": self._retain,
            "compact": self._compact,
            "delete_records": self._delete_records,
            "restart": self._restart,
            "crash": self._crash,
            "cut_power": self._cut_power,
            "cut_power_within": self._cut_power_within,
            "fail_syncs": self._fail_syncs,
            "fail_appends": self._fail_appends,
            "fail_renames": self._fail_renames,
            "fill_disk": self._fill_disk,
            "step_clock": self._step_clock,
            "fail_store_reads": self._fail_store_reads,
            "fail_store_commits": self._fail_store_commits,
            "lose_store_replies": self._lose_store_replies,
            "fill_store": self._fill_store,
        }[step.action]
        with contextlib.suppress(Disconnected, RequestError):  # The broker may be down or refuse: the story continues.
            await action(broker, step.number)

    async def _retain(self, broker: SimulatedBroker, number: int) -> None:
        await broker.ask(lambda inside: inside.partitions.retention.run_once())

    async def _compact(self, broker: SimulatedBroker, number: int) -> None:
        await broker.ask(lambda inside: inside.partitions.compaction.run_once())

    async def _delete_records(self, broker: SimulatedBroker, number: int) -> None:
        place = (LOG_TOPIC, number % PARTITIONS)
        offset = number % (self._ledger.of(place).high_watermark + 1)
        self._ledger.delete_before(place, offset)
        await broker.ask(lambda inside: inside.partitions.retention.delete_records(CALLER, *place, offset, _TIMEOUT_MS))

    async def _restart(self, broker: SimulatedBroker, number: int) -> None:
        await broker.stop()
        await broker.start()

    async def _crash(self, broker: SimulatedBroker, number: int) -> None:
        broker.crash()
        await broker.start()

    async def _cut_power(self, broker: SimulatedBroker, number: int) -> None:
        broker.cut_power()
        await broker.start()

    async def _cut_power_within(self, broker: SimulatedBroker, number: int) -> None:
        """Cut the power in the middle of the broker's disk operations, after a number of them."""
        died = asyncio.Event()
        broker.cut_power_after(number % 200, died.set)
        try:
            async with asyncio.timeout(5):
                await died.wait()
        except TimeoutError:
            broker.cut_power()
        await broker.start()

    async def _fail_syncs(self, broker: SimulatedBroker, number: int) -> None:
        await self._fail(broker, "sync", number)

    async def _fail_appends(self, broker: SimulatedBroker, number: int) -> None:
        await self._fail(broker, "append", number)

    async def _fail_renames(self, broker: SimulatedBroker, number: int) -> None:
        """Let deleted topics keep the names of their directories until topics of these names are created again."""
        await self._fail(broker, "rename", number, longest_ms=20_000)

    async def _fail(self, broker: SimulatedBroker, operation: str, number: int, longest_ms: int = 3_000) -> None:
        """Take partitions offline by a disk fault, then heal the disk and restart the broker."""
        broker.disk.fail(operation)
        await asyncio.sleep(number % longest_ms / 1_000)
        broker.disk.heal()
        broker.crash()
        await broker.start()

    async def _fill_disk(self, broker: SimulatedBroker, number: int) -> None:
        broker.disk.free_bytes = number % 2_000
        await asyncio.sleep(number % 3_000 / 1_000)
        broker.disk.heal()
        broker.crash()
        await broker.start()

    async def _step_clock(self, broker: SimulatedBroker, number: int) -> None:
        broker.set_wall_clock(number % 7_200 * 1_000 - 3_600_000)

    async def _fail_store_reads(self, broker: SimulatedBroker, number: int) -> None:
        broker.store.fail(StoreFault.READ_FAILS)
        await self._heal_store(broker, number)

    async def _fail_store_commits(self, broker: SimulatedBroker, number: int) -> None:
        broker.store.fail(StoreFault.COMMIT_FAILS)
        await self._heal_store(broker, number)

    async def _lose_store_replies(self, broker: SimulatedBroker, number: int) -> None:
        """Lose the replies to commits. For odd numbers, reads fail too."""
        broker.store.fail(StoreFault.REPLY_LOST)
        if number % 2:
            broker.store.fail(StoreFault.READ_FAILS)
        await self._heal_store(broker, number)

    async def _fill_store(self, broker: SimulatedBroker, number: int) -> None:
        broker.store.is_full = True
        await self._heal_store(broker, number)

    async def _heal_store(self, broker: SimulatedBroker, number: int) -> None:
        """Heal the store after a while. Every fourth time, the broker crashes and restarts before that."""
        heal = asyncio.get_running_loop().call_later(1 + number % 8_000 / 1_000, broker.store.heal)
        if number % 4 == 0:
            await asyncio.sleep(number % 1_000 / 1_000)
            await self._crash(broker, number)
        await asyncio.sleep(max(0.0, heal.when() - asyncio.get_running_loop().time()) + 0.001)
