"""Requests straight to a broker's socket, made and read by kio: for what a client library would hide or slow down."""

import io
import socket
from typing import Any

from kio.schema.list_offsets.v7 import request as list_offsets_request
from kio.schema.list_offsets.v7.response import ListOffsetsResponse
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse
from kio.serial import entity_reader, entity_writer

_LATEST = -1
_TIMEOUT_S = 60
_METADATA_REQUEST: Any = MetadataRequest
_LIST_OFFSETS: Any = list_offsets_request


def request_frame(request: Any) -> bytes:
    """A request as it goes over the wire, length in front."""
    schema = type(request)
    buffer = io.BytesIO()
    header = schema.__header_schema__(
        request_api_key=schema.__api_key__,
        request_api_version=schema.__version__,
        correlation_id=1,
        client_id="bench",
    )
    entity_writer(schema.__header_schema__)(buffer, header)
    entity_writer(schema)(buffer, request)
    body = buffer.getvalue()
    return len(body).to_bytes(4, "big") + body


def read_response(schema: Any, frame: bytes) -> Any:
    """A response without its length."""
    _, header_size = entity_reader(schema.__header_schema__)(frame, 0)
    return entity_reader(schema)(frame, header_size)[0]


def ask(address: str, request: Any, response_schema: Any) -> Any:
    """Send one request on a connection of its own and wait for the response. Raises OSError."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection, connection.makefile("rb") as answers:
        connection.sendall(request_frame(request))
        length = int.from_bytes(answers.read(4), "big")
        frame = answers.read(length)
        if not length or len(frame) < length:
            raise ConnectionError("closed before the response was complete")
        return read_response(response_schema, frame)


def knows_itself(address: str) -> bool:
    """Whether the broker answers a Metadata request and names at least one broker. Raises OSError."""
    request = _METADATA_REQUEST(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    return len(ask(address, request, MetadataResponse).brokers) > 0


def log_end_offsets(address: str, topic: str, partitions: int) -> list[int] | None:
    """One for each partition, None if one of them has no leader that answers. Raises OSError."""
    asked = tuple(
        _LIST_OFFSETS.ListOffsetsPartition(partition_index=each, current_leader_epoch=-1, timestamp=_LATEST)
        for each in range(partitions)
    )
    request = _LIST_OFFSETS.ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=(_LIST_OFFSETS.ListOffsetsTopic(name=topic, partitions=asked),)
    )
    answered = [each for found in ask(address, request, ListOffsetsResponse).topics for each in found.partitions]
    if len(answered) < partitions or any(int(each.error_code) != 0 for each in answered):
        return None
    return [each.offset for each in answered]
