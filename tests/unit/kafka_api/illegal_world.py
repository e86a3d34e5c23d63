"""The broker for the table of invalid requests: its topics, groups, sessions and producers, created over TCP.

Time stands still, so nothing expires, and no row of the table changes the broker's state.
"""

import socket
from contextlib import ExitStack
from typing import Any, Self
from uuid import UUID

from conveyor.records.record import encode_batch
from conveyor.settings.tree import Settings
from conveyor.testing import Broker, ManualClock
from tests.unit.kafka_api.illegal_row import Given
from tests.unit.kafka_api.requests import framed, request, response

NOW_MS = ManualClock().now_ms()
BROKER_SETTINGS = {"broker.auto_create_topics": False, "groups.max_size": 2, "groups.consumer_max_size": 3}
MEMBER_METADATA_MAX_BYTES = Settings().groups.member_metadata_max_bytes
TOPICS: dict[str, dict[str, str]] = {
    "t": {},
    "small": {"max.message.bytes": "100"},
    "timed": {
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": "1000",
        "message.timestamp.before.max.ms": "1000",
    },
    "compacted": {"cleanup.policy": "compact"},
    "replicated": {"min.insync.replicas": "2"},
    "trimmed": {},
}
UNKNOWN_ID = UUID(int=77)


def record_batch(value: bytes = b"value", ms: int = NOW_MS, **more: int) -> bytes:
    return encode_batch([(ms, b"key", value, [])], **more)


class Wire:
    """A connection to a broker."""

    def __init__(self, broker: Broker) -> None:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        """Send a request and return the body of its response."""
        self.send(request(api_key, version, **values))
        frame = self.receive()
        assert frame is not None, "the broker closed the connection"
        return response(api_key, version, frame)

    def send(self, frame: bytes) -> None:
        self.stream(framed(frame))

    def stream(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> bytes | None:
        """Return the next frame; None if the broker has closed the connection."""
        head = self._exactly(4)
        return None if head is None else self._exactly(int.from_bytes(head, "big"))

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                more = self._socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data


def build_world(broker: Broker, stack: ExitStack) -> dict[Given, Any]:
    """Create everything that rows refer to. Clients with pending requests wait until the stack is closed."""
    wire = stack.enter_context(Wire(broker))
    world: dict[Given, Any] = {Given.UNKNOWN_ID: UNKNOWN_ID, Given.TOPIC_ID: _make_topics(wire)}
    _write_logs(wire)
    world |= _join_classic(wire, stack.enter_context(Wire(broker)))
    world |= _join_consumers(wire)
    return world | _open_session(wire)


def _make_topics(wire: Wire) -> UUID:
    wanted = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": []}
        | {"configs": [{"name": key, "value": value} for key, value in config.items()]}
        for name, config in TOPICS.items()
    ]
    made = wire.ask(19, 7, topics=wanted, timeout=1000, validate_only=False)
    assert {int(topic.error_code) for topic in made.topics} == {0}
    return UUID(int=next(topic.topic_id for topic in made.topics if topic.name == "t").int)


def _write_logs(wire: Wire) -> None:
    first = record_batch(producer_id=9, producer_epoch=2, base_sequence=0)
    for topic in ("t", "trimmed"):
        data = [{"name": topic, "partition_data": [{"index": 0, "records": first}]}]
        wire.ask(0, 9, acks=-1, timeout=1000, topic_data=data)
    trimmed = [{"name": "trimmed", "partitions": [{"partition_index": 0, "offset": 1}]}]
    wire.ask(21, 2, topics=trimmed, timeout=1000)


def join_values(group_id: str, member_id: str = "", **more: Any) -> dict[str, Any]:
    timeouts = {"session_timeout": 10_000, "rebalance_timeout": 10_000}
    protocols = [{"name": "range", "metadata": b"m"}]
    return {
        "group_id": group_id, "member_id": member_id, "protocol_type": "connect", "protocols": protocols,
        **timeouts, "group_instance_id": None, **more,
    }  # fmt: skip


def _join_classic(wire: Wire, waiting: Wire) -> dict[Given, Any]:
    """Create the groups `classic` (stable), `static` (a static member), `unsynced` and `waiting` (no assignment)."""
    static = wire.ask(11, 5, **join_values("static", group_instance_id="desk")).member_id
    fields: dict[str, Any] = {"generation_id": 1, "group_instance_id": None, "assignments": []}
    member = wire.ask(11, 3, **join_values("classic")).member_id
    wire.ask(14, 3, group_id="classic", member_id=member, **fields)
    unsynced = wire.ask(11, 3, **join_values("unsynced")).member_id
    first = wire.ask(11, 3, **join_values("waiting")).member_id
    wire.ask(14, 3, group_id="waiting", member_id=first, **fields)
    waiting.send(request(11, 3, **join_values("waiting")))
    while int(wire.ask(12, 3, group_id="waiting", member_id=first, **fields).error_code) == 0:
        pass
    return {
        Given.CLASSIC_MEMBER: member,
        Given.STATIC_MEMBER: static,
        Given.UNSYNCED_MEMBER: unsynced,
        Given.WAITED_FOR_MEMBER: first,
    }


def beat(group_id: str = "consumers", member_id: str = "m1", member_epoch: Any = 0, **more: Any) -> dict[str, Any]:
    return {
        "group_id": group_id, "member_id": member_id, "member_epoch": member_epoch, "instance_id": None,
        "rack_id": None, "rebalance_timeout": 10_000, "subscribed_topic_names": ("t",),
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": [], **more,
    }  # fmt: skip


def _join_consumers(wire: Wire) -> dict[Given, Any]:
    """Create the groups `consumers`, with a member m1 and a static member m2 (instance `chair`), and `crowd` (full)."""
    for number in range(3):
        wire.ask(68, 1, **beat("crowd", f"c{number}"))
    joined = wire.ask(68, 1, **beat())
    wire.ask(68, 1, **beat(member_id="m2", instance_id="chair"))
    assert joined.member_epoch > 0
    return {Given.CONSUMER_EPOCH: joined.member_epoch, Given.WRONG_EPOCH: joined.member_epoch + 40}


def _open_session(wire: Wire) -> dict[Given, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": 0, "forgotten_topics_data": []}
    opened = wire.ask(1, 12, topics=[{"topic": "t", "partitions": [partition]}], **limits)
    assert opened.session_id > 0
    return {Given.SESSION: opened.session_id}
