"""Requests about many groups cost in proportion to their groups."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conveyor.groups.group_commands import DescribeGroup
from conveyor.kafka_api.apis.groups.gather import ask_groups
from conveyor.kafka_api.wire.call import KafkaCall
from tests.callers import CALLER

GROUPS = 500


class Description(dict[str, Any]):
    """A description that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Description.compared += 1
        return super().__eq__(other)

    __hash__ = None


def call_of(replies: list[Callable[[object], None]]) -> KafkaCall:
    """Return a call whose coordinators reply when the test does."""

    def guarded(function: Callable[..., None], number: int) -> Callable[[object], None]:
        return partial(function, None, number)

    groups = SimpleNamespace(submit=lambda _, __, reply: replies.append(reply))
    broker = SimpleNamespace(coordinators=SimpleNamespace(groups=groups))
    return cast("KafkaCall", SimpleNamespace(broker=broker, caller=CALLER, guarded=guarded))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_replies_are_gathered_in_order_without_looking_at_the_others(*, is_reversed: bool) -> None:
    Description.compared = 0
    replies: list[Callable[[object], None]] = []
    finished: list[list[dict[str, Any]]] = []
    commands = [DescribeGroup(group_id=f"g{number}") for number in range(GROUPS)]

    ask_groups(call_of(replies), commands, lambda number, _: Description(number=number), finished.append)
    for reply in reversed(replies) if is_reversed else replies:
        assert not finished
        reply(None)

    assert Description.compared == 0
    assert [group["number"] for group in finished[0]] == list(range(GROUPS))
