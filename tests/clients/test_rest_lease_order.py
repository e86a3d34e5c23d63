"""Which partition's messages are leased first, where a filter lets little through."""

from collections.abc import Iterator

import pytest

from conveyor.testing import Broker
from tests.clients.rest_client import Rest


@pytest.fixture
def rest(memory_broker: Broker) -> Iterator[Rest]:
    client = Rest(memory_broker)
    yield client
    client.close()


def test_lease_finds_a_message_behind_more_urgent_ones_that_are_filtered_out(rest: Rest) -> None:
    rest.create("orders", "books", partitions=2, filter="tag == 'book'")
    rest.publish("orders", "a pen", partition=0, priority=5, tag="pen")
    rest.publish("orders", "ink", partition=1, priority=9, tag="ink")
    rest.publish("orders", "a book", partition=1, priority=4, tag="book")
    leased = rest.get("/subscriptions/books/messages").json["messages"]
    assert [each["payload"] for each in leased] == ["a book"]
