"""What Kafka's Java client writes is read as it was meant, to the last byte; what this broker writes, it writes so.

The golden files hold a request and a response for every API in every version served, with a value in every field.
`tests/vectors/capture/messages.py` makes them.
"""

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from conveyor.broker.fetch.fetcher import Fetched
from conveyor.broker.produce.publisher import Published
from conveyor.kafka_api.apis.records import k00_produce, k01_fetch
from conveyor.kafka_api.wire.call import KafkaCall, RequestHeader
from conveyor.kafka_api.wire.codec import build, decode_request, encode_response
from conveyor.kafka_api.wire.versions import SERVED_APIS
from conveyor.kernel.errors import ERRORS, ErrorKind, ProtocolViolation, RequestError
from conveyor.kernel.ports import FileSlice
from conveyor.testing import MemoryDisk
from tests.vectors.recorded import EPOCH, Golden, golden_messages, golden_requests, kio_values, null_records
from tests.vectors.wire import read_request, read_response

MESSAGES = golden_messages()
REQUESTS = golden_requests()
RESPONSES = [each for each in MESSAGES if each.kind == "response"]
PRODUCE, FETCH = 0, 1


def plain(key: int) -> list[Golden]:
    """Responses that the hand-packed encoders can make."""
    return [each for each in RESPONSES if each.key == key and each.case == "plain"]


def test_every_api_in_every_version_has_its_golden_pair() -> None:
    held = {(each.key, each.version, each.kind) for each in MESSAGES if each.case == "full"}
    served = {
        (api.key, version, kind)
        for api in SERVED_APIS.values()
        for version in range(api.min_version, api.max_version + 1)
        for kind in ("request", "response")
    }
    assert held == served, "python -m tests.vectors.capture.messages"


@pytest.mark.parametrize("golden", REQUESTS, ids=str)
def test_request_is_read_as_it_was_meant(golden: Golden) -> None:
    schema = load_request_schema(golden.key, golden.version)
    header, request = read_request(golden.key, golden.version, golden.data)
    assert request == build(schema, kio_values(schema, golden.values))
    assert (header.request_api_key, header.request_api_version) == (golden.key, golden.version)
    assert header.client_id == (None if golden.case == "nulls" else "golden")


@pytest.mark.parametrize("golden", null_records(), ids=str)
def test_null_records_are_refused(golden: Golden) -> None:
    """What kio reads otherwise is what the Java client meant, to the last byte."""
    schema = load_request_schema(golden.key, golden.version)
    _, start = entity_reader(schema.__header_schema__)(golden.data, 0)
    expected = build(schema, kio_values(schema, golden.values))
    assert entity_reader(schema)(golden.data, start) == (expected, len(golden.data) - start)
    with pytest.raises(ProtocolViolation, match="null instead of records"):
        decode_request(golden.key, golden.version, golden.data, len(golden.data))


@pytest.mark.parametrize("golden", RESPONSES, ids=str)
def test_response_is_written_as_the_client_writes_it(golden: Golden) -> None:
    schema = load_response_schema(golden.key, golden.version)
    values = kio_values(schema, golden.values)
    assert encode_response(golden.key, golden.version, golden.correlation_id, values) == golden.data
    assert read_response(golden.key, golden.version, golden.data) == (golden.correlation_id, build(schema, values))


def error_of(partition: Any) -> RequestError | None:
    """The error that has a partition's code."""
    code, message = partition["error_code"], partition.get("error_message")
    kinds = (kind for kind in ErrorKind if ERRORS[kind].kafka_code == code)
    return None if code == 0 else RequestError(next(kinds), message or "")


def topics_of(golden: Golden) -> list[dict[str, Any]]:
    schema = load_response_schema(golden.key, golden.version)
    return list(kio_values(schema, golden.values)["responses"])


@pytest.mark.parametrize("golden", plain(PRODUCE), ids=str)
def test_packed_produce_response_is_what_the_client_writes(golden: Golden) -> None:
    topics, results = [], []
    for topic in topics_of(golden):
        parts = topic["partition_responses"]
        asked = [SimpleNamespace(index=each["index"]) for each in parts]
        topics.append(SimpleNamespace(name=topic.get("name"), topic_id=topic.get("topic_id"), partition_data=asked))
        for each in parts:
            time_ms, start = milliseconds(each["log_append_time"]), each.get("log_start_offset", -1)
            results.append(Published(error_of(each), each["base_offset"], time_ms, start))
    throttle_ms = golden.values["throttleTimeMs"]
    packed = k00_produce.encode(golden.version, golden.correlation_id, topics, results, throttle_ms)
    assert packed == framed(golden)


def milliseconds(time: datetime | None) -> int:
    return -1 if time is None else (time - EPOCH) // timedelta(milliseconds=1)


@pytest.mark.parametrize("golden", plain(FETCH), ids=str)
def test_packed_fetch_response_is_what_the_client_writes(golden: Golden) -> None:
    file = MemoryDisk().open("log", create=True)
    topics, results = [], []
    aborted = None
    for topic in topics_of(golden):
        asked = [SimpleNamespace(partition=each["partition_index"]) for each in topic["partitions"]]
        topics.append(SimpleNamespace(topic=topic.get("topic"), topic_id=topic.get("topic_id"), partitions=asked))
        for each in topic["partitions"]:
            content, aborted = each["records"], each["aborted_transactions"]
            records = FileSlice(file, file.size, len(content)) if content else None
            file.append([content])
            fetched = Fetched(error_of(each), each["high_watermark"], each.get("log_start_offset", -1), records)
            fetched.last_stable_offset = each["last_stable_offset"]
            results.append(fetched)
    request = SimpleNamespace(isolation_level=0 if aborted is None else 1)
    header = RequestHeader(1, golden.version, golden.correlation_id, "")
    call = cast("KafkaCall", SimpleNamespace(header=header, request=request))
    session_id, throttle_ms = golden.values.get("sessionId", 0), golden.values["throttleTimeMs"]
    packed = k01_fetch.encode(call, topics, results, session_id=session_id, throttle_ms=throttle_ms)
    parts = (part if isinstance(part, bytes) else part.file.read(part.position, part.length) for part in packed)
    assert b"".join(parts) == framed(golden)


def framed(golden: Golden) -> bytes:
    return len(golden.data).to_bytes(4, "big") + golden.data
