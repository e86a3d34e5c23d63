"""The broker serves clients with the longest names and the largest subscriptions."""

import socket
from struct import pack, unpack

from conveyor.testing import Broker

LONGEST = b"c" * 32_767


def text(content: bytes) -> bytes:
    return pack(">h", len(content)) + content


def ask(connection: socket.socket, api_key: int, api_version: int, body: bytes) -> bytes:
    """Return the response without its correlation id; empty if the broker closes the connection."""
    frame = pack(">hhi", api_key, api_version, 7) + text(LONGEST) + body
    connection.sendall(pack(">i", len(frame)) + frame)
    with connection.makefile("rb") as answers:
        length = answers.read(4)
        return answers.read(unpack(">i", length)[0])[4:] if length else b""


def join_body(subscription: bytes) -> bytes:
    timeouts = pack(">ii", 10_000, 10_000)
    protocols = pack(">i", 1) + text(b"range") + pack(">i", len(subscription)) + subscription
    return text(b"group") + timeouts + text(b"") + text(b"consumer") + protocols


def connect(broker: Broker) -> socket.socket:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_longest_client_id_gets_a_member_id(memory_broker: Broker) -> None:
    with connect(memory_broker) as connection:
        answer = ask(connection, 11, 2, join_body(subscription=b""))
    assert unpack(">hi", answer[4:10]) == (0, 1)


def test_group_whose_record_is_larger_than_a_topic_takes_is_remembered(memory_broker: Broker) -> None:
    with connect(memory_broker) as connection:
        member_id = ask(connection, 11, 2, join_body(subscription=bytes(2_000_000)))[19:311]
        assert member_id.startswith(b"c" * 255)
        assignment = text(member_id) + pack(">i", 4) + b"mine"
        answer = ask(connection, 14, 0, text(b"group") + pack(">i", 1) + text(member_id) + pack(">i", 1) + assignment)
    assert answer == pack(">h", 0) + pack(">i", 4) + b"mine"


def test_string_longer_than_kafka_allows_closes_the_connection(memory_broker: Broker) -> None:
    group_of_32768_bytes = b"\x81\x80\x02" + b"g" * 32_768
    commit = b"\x00" + group_of_32768_bytes + pack(">i", -1) + b"\x01" + b"\x00" + b"\x01" + b"\x00"
    with connect(memory_broker) as connection:
        assert ask(connection, 8, 8, commit) == b""
    with connect(memory_broker) as connection:
        assert ask(connection, 18, 0, b"")[:2] == b"\x00\x00"
