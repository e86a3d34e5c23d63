"""Messages are published, leased and settled without a task, and nothing is lost with a client that disconnects."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.slices import Slices
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.http.endpoints.endpoint_application import EndpointApplication
from conveyor.http.engine.exchange import Service
from conveyor.http.engine.http_response import DateHeader
from conveyor.http_api.application import ENDPOINTS, RestDoor
from conveyor.http_api.requests.tokens import Tokens
from conveyor.kernel.request_budget import RequestBudget
from conveyor.kernel.response_budget import SMALL_BYTES
from conveyor.queues.queue_commands import QueueCommand
from conveyor.queues.subscription.policy import StartPosition
from conveyor.replication.machine_runner import Respond, Withdraw
from tests.callers import CALLER
from tests.unit.broker.parts import running_parts
from tests.unit.http.memory_wire import Client, until

BATCH = {"messages": [{"payload": "a"}, {"payload": "b", "key": "k", "headers": {"h": "1"}, "priority": 3}]}


class Door:
    """A broker with a topic `t`, its subscription `s`, and one connection."""

    def __init__(self, broker: BrokerNode) -> None:
        self.broker = broker
        rest = RestDoor(broker, SimpleNamespace(), Tokens(()))
        self.budget = RequestBudget(1 << 20)
        self._service = Service(
            EndpointApplication(ENDPOINTS, rest), self.budget, DateHeader(broker.clock), 10, count(1)
        )
        self.client = Client(service=self._service)
        self.tasks_count = len(asyncio.all_tasks())

    def reconnect(self) -> None:
        """Disconnect, and connect again."""
        self.client.connection.connection_lost()
        self.client = Client(service=self._service)

    def is_quiet(self) -> bool:
        return not self._service.in_progress

    def send(self, method: str, target: str, document: object = None) -> None:
        body = b"" if document is None else json.dumps(document).encode()
        self.client.send(
            f"{method} {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )

    async def ask(self, method: str, target: str, document: object = None) -> Any:
        """Return the document of the response, before which no task is begun."""
        self.send(method, target, document)
        while not self.client.wire.written:
            assert len(asyncio.all_tasks()) == self.tasks_count
            await asyncio.sleep(0)
        ((status, content),) = self.client.responses()
        assert status < 300, content
        return json.loads(content)

    async def lease(self, subscription: str = "s") -> list[dict[str, Any]]:
        leased = await self.ask("GET", f"/subscriptions/{subscription}/messages?max_messages=10")
        return list(leased["messages"])


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with running_parts({"topics.flush_policy": "os"}) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        earliest = StartPosition(kind="earliest")
        await broker.queues.lifecycle.create(CALLER, "t", "s", earliest, {})
        await broker.queues.lifecycle.create(CALLER, "t", "once", earliest, {"delivery": "at_most_once"})
        yield Door(broker)


async def test_message_is_published_leased_and_settled_without_a_task(door: Door) -> None:
    assert (await door.ask("POST", "/topics/t/messages", {}))["message_id"] == "0-0"
    receipts = (await door.ask("POST", "/topics/t/messages:batch", BATCH))["results"]
    assert [receipt["message_id"] for receipt in receipts] == ["0-1", "0-2"]
    ack_ids = [lease["ack_id"] for lease in await door.lease()]
    for verb, fields in (("extend", {"visibility": "1m"}), ("nack", {"delay": "0s"})):
        results = (await door.ask("POST", f"/subscriptions/s/{verb}", {"ack_ids": ack_ids, **fields}))["results"]
        assert [result["status"] for result in results] == ["ok"] * 3
    ack_ids = [lease["ack_id"] for lease in await door.lease()]
    results = (await door.ask("POST", "/subscriptions/s/ack", {"ack_ids": [*ack_ids, "none"]}))["results"]
    assert [result["status"] for result in results] == ["ok"] * 3 + ["error"]


async def test_publish_is_carried_out_although_its_client_has_gone(door: Door) -> None:
    door.send("POST", "/topics/t/messages:batch", BATCH)
    door.reconnect()
    await until(door.is_quiet)
    assert [lease["payload"] for lease in await door.lease()] == ["a", "b"]


@pytest.mark.parametrize("target", ["/topics/t/messages:batch", "/messages:batch"])
async def test_messages_of_a_batch_are_weighed_until_the_reply(door: Door, target: str) -> None:
    """Empty ones take thirty times as much memory as the request."""
    message = {"payload": "", "headers": {"a": [""] * 10}} | ({} if "topics" in target else {"topic": "t"})
    door.send("POST", target, {"messages": [message] * 100})
    door.reconnect()
    await until(lambda: door.budget.lasting_bytes > 100 * (500 + 10 * 150))
    await until(door.is_quiet)
    assert door.budget.lasting_bytes == 0


async def test_leases_that_are_written_before_they_are_granted_need_no_task(door: Door) -> None:
    await door.ask("POST", "/topics/t/messages:batch", BATCH)
    door.send("GET", "/subscriptions/once/messages?max_messages=10")
    assert not door.client.wire.written
    await until(lambda: bool(door.client.wire.written))
    ((_, content),) = door.client.responses()
    assert [lease["payload"] for lease in json.loads(content)["messages"]] == ["a", "b"]
    assert await door.lease("once") == []


async def test_leases_that_are_granted_when_their_client_has_gone_are_given_back(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    await door.ask("POST", "/topics/t/messages:batch", BATCH)
    late: list[Callable[[], None]] = []
    submit = QueuePartition.submit

    def submit_late(queue: QueuePartition, command: QueueCommand[Any], respond: Respond[Any]) -> Withdraw:
        return submit(queue, command, lambda answer: late.append(partial(respond, answer)))

    with monkeypatch.context() as patch:
        patch.setattr(QueuePartition, "submit", submit_late)
        door.send("GET", "/subscriptions/s/messages?max_messages=10")
        door.reconnect()
    assert not door.is_quiet()
    late[0]()
    assert door.is_quiet()
    assert [lease["delivery_count"] for lease in await door.lease()] == [1, 1]


async def test_request_that_waits_leases_nothing_once_its_client_has_gone(door: Door) -> None:
    door.send("GET", "/subscriptions/s/messages?wait=20s")
    await asyncio.sleep(0)
    door.reconnect()
    await until(door.is_quiet)
    await door.ask("POST", "/topics/t/messages:batch", BATCH)
    assert len(await door.lease()) == 2


async def publish_large(door: Door) -> None:
    await door.broker.produce.messages.publish(CALLER, "t", [OutgoingMessage(b"x" * (SMALL_BYTES + 1))])


async def lease_large(door: Door) -> tuple[int, Any]:
    """Return the response to a client that waits for a large message."""
    door.send("GET", "/subscriptions/s/messages?wait=20s")
    await until(lambda: bool(door.client.wire.written))
    ((status, content),) = door.client.responses()
    return status, json.loads(content)


@pytest.mark.parametrize("query", ["", "?wait=20s"])
async def test_large_leases_are_given_back_if_their_client_goes_while_they_are_shown(
    door: Door, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, go_on = asyncio.Event(), asyncio.Event()
    in_thread = Slices.in_thread

    async def in_thread_later(slices: Slices, work: Callable[[], object], *meter: Any) -> object:
        made.set()
        await go_on.wait()
        return await in_thread(slices, work, *meter)

    with monkeypatch.context() as patch:
        patch.setattr(Slices, "in_thread", in_thread_later)
        if not query:
            await publish_large(door)
        door.send("GET", f"/subscriptions/s/messages{query}")
        await asyncio.sleep(0)
        if query:
            await publish_large(door)
        await made.wait()
        door.reconnect()
        go_on.set()
        await until(door.is_quiet)
    status, document = await lease_large(door)
    assert (status, document["messages"][0]["delivery_count"]) == (200, 1)
