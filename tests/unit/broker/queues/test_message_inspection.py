"""Finding a message by its id."""

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.message import Message
from tests.callers import CALLER
from tests.unit.broker.publishing import message, put


async def test_message_is_found_as_it_was_published(broker: BrokerNode) -> None:
    headers = (("a", b"1"), ("a", None))
    (result,) = await put(broker, message(None, key=b"k", headers=headers, partition=1, timestamp_ms=5))
    assert await broker.fetch.browser.get(CALLER, "t", result.message_id) == Message("t", 1, 0, 5, b"k", None, headers)


async def test_get_finds_one_among_many_in_a_batch(broker: BrokerNode) -> None:
    await put(broker, *(message(b"%d" % number, partition=0) for number in range(10)))
    assert (await broker.fetch.browser.get(CALLER, "t", "0-7")).value == b"7"


@pytest.mark.parametrize("message_id", ["0-1", "1-0", "2-0", "x", "0-i3", ""])
async def test_get_of_an_unknown_message_says_what_there_is(broker: BrokerNode, message_id: str) -> None:
    await put(broker, message(partition=0))
    with pytest.raises(RequestError, match=f"no message '{message_id}': ") as refused:
        await broker.fetch.browser.get(CALLER, "t", message_id)
    assert refused.value.kind is ErrorKind.UNKNOWN_MESSAGE
