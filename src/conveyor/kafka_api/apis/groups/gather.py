"""Requests about several groups: asks their coordinators at the same time and waits for all replies."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from conveyor.groups.group_commands import OneGroupCommand
from conveyor.kafka_api.wire.call import KafkaCall

Description = TypeVar("Description")
Descriptions = list[dict[str, Any]]


def ask_groups(
    call: KafkaCall,
    commands: Sequence[OneGroupCommand[object]],
    describe: Callable[[int, object], Description],
    finish: Callable[[list[Description]], object],
) -> None:
    """Ask each group's coordinator, `describe` each reply, and pass the descriptions, in order, to `finish`."""
    answers: list[Any] = [None] * len(commands)
    left = len(commands)
    if not commands:
        finish([])
        return

    def one(_: KafkaCall, number: int, reply: object) -> None:
        nonlocal left
        answers[number] = describe(number, reply)
        left -= 1
        if not left:
            finish(answers)

    for number, command in enumerate(commands):
        call.broker.coordinators.groups.submit(call.caller, command, call.guarded(one, number))
