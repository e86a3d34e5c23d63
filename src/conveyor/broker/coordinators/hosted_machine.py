"""A state machine that this broker runs, and the way to ask it."""

from functools import partial
from typing import Any

from conveyor.broker.answers import Answer, answered
from conveyor.kernel.state_machine import Command
from conveyor.replication.machine_runner import MachineRunner


class HostedMachine(MachineRunner[Any]):
    """Runs the machine of one partition, as `Coordinators` have loaded it."""

    def start(self) -> None:
        """Begin to decide: no other machine of the partition runs."""

    async def ask(self, command: Command[Answer]) -> Answer:
        """Return the machine's reply, once it is durable. Raises RequestError."""
        return await answered(partial(self.submit, command))
