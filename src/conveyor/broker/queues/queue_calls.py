"""Asking the machine of a queue's partition, and waiting for what it says."""

import asyncio
from typing import Any

from conveyor.broker.hosts.queue_partition import QueuePartition
from conveyor.kernel.errors import RequestError
from conveyor.queues.queue_commands import QueueCommand


async def ask(partition: QueuePartition, command: QueueCommand) -> Any:
    """What the machine replies, once that is safe. Raises RequestError."""
    answers: list[object] = []
    waiting: asyncio.Future[None] | None = None

    def respond(reply: object) -> None:
        answers.append(reply)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    partition.submit(command, respond)
    if not answers:
        waiting = asyncio.get_running_loop().create_future()
        await waiting
    if isinstance(answers[0], RequestError):
        raise answers[0]
    return answers[0]
