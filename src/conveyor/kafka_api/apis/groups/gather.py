"""One request that asks several groups: their coordinators are asked at once, and the answer waits for all."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from conveyor.groups.group_commands import OneGroupCommand
from conveyor.kafka_api.wire.call import Call

Answers = list[dict[str, Any]]


def ask_groups(
    call: Call,
    commands: Sequence[OneGroupCommand],
    told: Callable[[int, object], dict[str, Any]],
    finish: Callable[[Answers], None],
) -> None:
    """Turn the reply to each command into its part of the answer by `told`, and give all, in order, to `finish`."""
    answers: list[dict[str, Any] | None] = [None] * len(commands)
    if not commands:
        return finish([])

    def one(number: int, reply: object) -> None:
        answers[number] = told(number, reply)
        if None not in answers:
            finish([each for each in answers if each is not None])

    for number, command in enumerate(commands):
        call.broker.groups.submit(command, partial(one, number))
