"""Requests and responses: sent on a connection of their own, and read to the last byte."""

import socket
import struct
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from conveyor.kafka_api.wire.codec import decode_request
from conveyor.kafka_api.wire.skim import skimmer
from conveyor.kernel.errors import ProtocolViolation
from conveyor.testing import Broker


def ask(broker: Broker, frame: bytes) -> bytes:
    """Send a frame (no length in front) and read the one that comes back. Raises AssertionError if none does."""
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        head = answers.read(4)
        assert head, "the broker closed the connection"
        return answers.read(int.from_bytes(head, "big"))


def read_request(api_key: int, version: int, frame: bytes) -> tuple[Any, Any]:
    """The header and the body in a request, in which the broker sees no bytes beside them, and misses none."""
    schema = load_request_schema(api_key, version)
    _, start = entity_reader(schema.__header_schema__)(frame, 0)
    assert start + entity_reader(schema)(frame, start)[1] == len(frame)
    with pytest.raises(ProtocolViolation):
        skimmer(schema)(frame[:-1], len(frame), [])
    return decode_request(api_key, version, memoryview(frame), len(frame))


def read_response(api_key: int, version: int, frame: bytes) -> tuple[int, Any]:
    """The correlation id and the body in a response that has no bytes beside them."""
    schema = load_response_schema(api_key, version)
    header, size = entity_reader(schema.__header_schema__)(frame, 0)
    body, body_size = entity_reader(schema)(frame, size)
    assert size + body_size == len(frame), "the response has bytes that its schema does not know"
    return header.correlation_id, body
