"""Who runs the simulated broker: starts it again after each fault, and asks for housekeeping."""

import asyncio
import contextlib

from conveyor.kernel.errors import RequestError
from conveyor.testing.simulation.actors import LOG_TOPIC, PARTITIONS
from conveyor.testing.simulation.ledger import LogLedger
from conveyor.testing.simulation.simulated_broker import Disconnected, SimulatedBroker
from conveyor.testing.simulation.story_schedule import Step

_TIMEOUT_MS = 1_000


class Operator:
    """Injects the faults of a schedule. `happened`: how often each of them was carried out."""

    def __init__(self, ledger: LogLedger) -> None:
        self.happened: dict[str, int] = {}
        self._ledger = ledger

    async def carry_out(self, step: Step, broker: SimulatedBroker) -> None:
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
            "fill_disk": self._fill_disk,
            "step_clock": self._step_clock,
        }[step.action]
        with contextlib.suppress(Disconnected, RequestError):  # The broker is down, or refuses: the story goes on.
            await action(broker, step.number)

    async def _retain(self, broker: SimulatedBroker, number: int) -> None:
        await broker.ask(lambda inside: inside.retention.retain_all())

    async def _compact(self, broker: SimulatedBroker, number: int) -> None:
        await broker.ask(lambda inside: inside.compaction.compact_all())

    async def _delete_records(self, broker: SimulatedBroker, number: int) -> None:
        place = (LOG_TOPIC, number % PARTITIONS)
        offset = number % (self._ledger.of(place).high_watermark + 1)
        self._ledger.delete_before(place, offset)
        await broker.ask(lambda inside: inside.retention.delete_records(*place, offset, _TIMEOUT_MS))

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
        """In the middle of what the broker does to its disk, after so many operations."""
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

    async def _fail(self, broker: SimulatedBroker, operation: str, number: int) -> None:
        """Partitions go offline; the disk heals, and the broker is started again."""
        broker.disk.fail(operation)
        await asyncio.sleep(number % 3_000 / 1_000)
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
