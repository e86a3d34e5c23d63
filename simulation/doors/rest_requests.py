"""The requests of clients over HTTP. Every function raises Disconnected and RequestError."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from conveyor.kernel.errors import RequestError
from simulation.doors.rest_link import RestAnswer, problem, problem_of


class SpeaksHttp(Protocol):
    """One client's way to one broker."""

    async def rest(self, method: str, path: str, document: object = None) -> RestAnswer:
        """Ask the broker. Raises Disconnected."""
        ...


@dataclass(frozen=True, slots=True)
class ClientLease:
    """A lease as a client knows it. expires_ms: by the clock of the broker that granted it."""

    message_id: str
    ack_id: str
    expires_ms: int
    payload: str


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A message that is not due. reason: `delay` or `backoff`."""

    message_id: str
    due_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of the messages that are not due. next: where the next page continues."""

    messages: Sequence[ListedMessage]
    next: str | None
    is_complete: bool


@dataclass(frozen=True, slots=True)
class SettledState:
    """The state of a message. settled_ms, delivery_count: None if they are not known."""

    state: str
    settled_ms: int | None
    delivery_count: int | None


async def create_subscription(door: SpeaksHttp, topic: str, name: str, **policy: object) -> str:
    """Create a subscription from the topic's start on, which delivers a message as often as needed. Returns its id."""
    document = {"name": name, "start": "earliest", "max_deliveries": 0} | policy
    made = await ask(door, "POST", f"/topics/{topic}/subscriptions", document)
    return str(made["id"])


async def unsettled_count(door: SpeaksHttp, subscription: str) -> int:
    """Return how many messages of a subscription are not settled."""
    return int((await ask(door, "GET", f"/subscriptions/{subscription}"))["unsettled"])


async def lease_messages(
    door: SpeaksHttp, subscription: str, count: int, wait_ms: int, visibility_ms: int
) -> list[ClientLease]:
    """Lease messages, and wait for the first one."""
    query = f"max_messages={count}&wait={wait_ms}ms&visibility={visibility_ms}ms"
    leased = await ask(door, "GET", f"/subscriptions/{subscription}/messages?{query}")
    return [
        ClientLease(
            found["message_id"],
            found["ack_id"],
            found["lease_expires_at_ms"],
            found["payload"],
        )
        for found in leased["messages"]
    ]


async def scheduled_page(door: SpeaksHttp, subscription: str, limit: int, after: str | None) -> ListPage:
    """List messages that a subscription withholds. after: `next` of the page before."""
    query = f"limit={limit}" + ("" if after is None else f"&after={after}")
    page = await ask(door, "GET", f"/subscriptions/{subscription}/scheduled?{query}")
    messages = [ListedMessage(found["message_id"], found["due_ms"], found["reason"]) for found in page["messages"]]
    return ListPage(messages, page["next"], page["complete"])


async def settled_state(door: SpeaksHttp, topic: str, subscription: str, message_id: str) -> SettledState:
    """Return the state of a message in a subscription."""
    states = await ask(door, "GET", f"/topics/{topic}/messages/{message_id}/ack")
    found = states["subscriptions"][subscription]
    return SettledState(found["state"], found["settled_ms"], found["delivery_count"])


async def settle(
    door: SpeaksHttp, subscription: str, verb: str, ids: Sequence[str], kind: str = "ack_ids", **fields: object
) -> list[RequestError | None]:
    """Ack, nack or extend leases. kind: the name of these ids in the request. Returns what became of each."""
    settled = await ask(door, "POST", f"/subscriptions/{subscription}/{verb}", {kind: ids} | fields)
    return [None if one["status"] == "ok" else problem_of(one["error"]) for one in settled["results"]]


async def ask(door: SpeaksHttp, method: str, path: str, document: object = None) -> Any:
    """Return the document of a successful response."""
    answer = await door.rest(method, path, document)
    error = problem(answer)
    if error is not None:
        raise error
    return answer.document


async def create_schedule(door: SpeaksHttp, name: str, topic: str, cron: str, payload: str) -> None:
    """Create a schedule of a topic."""
    await ask(door, "POST", "/schedules", {"name": name, "topic": topic, "cron": cron, "payload": payload})


async def publish_one(door: SpeaksHttp, topic: str, value: str) -> str:
    """Publish one message, whose payload is JSON. Returns its id."""
    return str((await ask(door, "POST", f"/topics/{topic}/messages", value))["message_id"])


async def publish_all(
    door: SpeaksHttp, topic: str, values: Sequence[str], dedup_ids: Sequence[str] = ()
) -> list[str | RequestError]:
    """Publish a batch. Returns the id of each message, or why it was refused."""
    messages = [{"payload": value} for value in values]
    for message, dedup_id in zip(messages, dedup_ids, strict=False):
        message["dedup_id"] = dedup_id
    answer = await ask(door, "POST", f"/topics/{topic}/messages:batch", {"messages": messages})
    return [one["message_id"] if one["status"] == "ok" else problem_of(one["error"]) for one in answer["results"]]


async def run_transaction(
    door: SpeaksHttp, name: str, messages: Sequence[tuple[str, str]], subscription: str, ack_ids: Sequence[str]
) -> None:
    """Publish messages to topics and acknowledge leases: all or nothing. name: the id of the request."""
    document = {
        "id": name,
        "messages": [{"topic": topic, "payload": value} for topic, value in messages],
        "acknowledge": [{"subscription": subscription, "ack_ids": ack_ids}],
    }
    await ask(door, "POST", "/transactions", document)
