"""A state machine that this broker runs, and the way to ask it."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from conveyor.broker.answers import Answer, answered
from conveyor.kernel.state_machine import Command, LogRecord
from conveyor.replication.machine_runner import MachineRunner


class HostedMachine(MachineRunner[Any]):
    """Runs the machine of one partition, as `Coordinators` have loaded it."""

    def start(self) -> None:
        """Begin to decide: no other machine of the partition runs."""

    def restate(self, records: Sequence[LogRecord]) -> None:
        """Store what the load of the machine has changed in its state, before it decides anything; see
        `append_applied`. Raises RequestError.
        """
        refusal = self.refusal()
        if refusal is None and self.append_applied(records) is None:
            refusal = self.refusal()
        if refusal is not None:
            raise refusal

    async def ask(self, command: Command[Answer]) -> Answer:
        """Return the machine's reply, once it is durable. Raises RequestError."""
        return await answered(partial(self.submit, command))
