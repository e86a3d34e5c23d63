"""Requests encoded and responses decoded by kio."""

import io
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from conveyor.kafka_api.wire.codec import build
from conveyor.kafka_api.wire.framing import LENGTH

API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_GROUPS, FETCH, FIND_COORDINATOR = 18, 19, 20, 15, 1, 10
INIT_PRODUCER_ID, JOIN_GROUP, LIST_OFFSETS, METADATA, PRODUCE = 22, 11, 2, 3, 0

SOFTWARE: dict[str, Any] = {"client_software_name": "test", "client_software_version": "1"}


def request_body(api_key: int, version: int, **values: Any) -> bytes:
    schema = load_request_schema(api_key, version)
    out = io.BytesIO()
    entity_writer(schema)(out, build(schema, values))
    return out.getvalue()


def request(api_key: int, version: int, correlation_id: int = 7, **values: Any) -> bytes:
    """Encode a request as a frame without its length."""
    header = load_request_schema(api_key, version).__header_schema__
    header_fields = {"request_api_key": api_key, "request_api_version": version, "correlation_id": correlation_id}
    out = io.BytesIO()
    entity_writer(header)(out, build(header, header_fields | {"client_id": "unit"}))
    return out.getvalue() + request_body(api_key, version, **values)


def framed(frame: bytes) -> bytes:
    return LENGTH.pack(len(frame)) + frame


def fetch(correlation_id: int, offset: int = 0, wait_ms: int = 500, topic: str = "t") -> bytes:
    """Encode a Fetch request (v4) for one partition."""
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    limits = {"max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20}
    return request(FETCH, 4, correlation_id, topics=[{"topic": topic, "partitions": [partition]}], **limits)


def produce(correlation_id: int, batch: bytes, acks: int = -1, topic: str = "t") -> bytes:
    """Encode a Produce request (v9) for one partition."""
    partition = {"index": 0, "records": batch}
    topics = [{"name": topic, "partition_data": [partition]}]
    return request(PRODUCE, 9, correlation_id, acks=acks, timeout=1000, topic_data=topics)


def response(api_key: int, version: int, frame: bytes) -> Any:
    """Decode the body of a response, and check that its schema covers every byte."""
    schema = load_response_schema(api_key, version)
    _, header_size = entity_reader(schema.__header_schema__)(frame, 0)
    body, size = entity_reader(schema)(frame, header_size)
    assert header_size + size == len(frame)
    return body


def ids(count: int, padding: str = "") -> bytes:
    """A request for so many groups, which do not exist."""
    groups = tuple(f"{number}{padding}" for number in range(count))
    return request(DESCRIBE_GROUPS, 5, 1, groups=groups, include_authorized_operations=False)
