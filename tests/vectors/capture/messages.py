"""Writes the golden files: every request and response in every version served, as Kafka's Java client writes them.

To make them anew, after an API was added or the client in tests/clients/java/pom.xml has changed:

    python -m tests.vectors.capture.messages
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from kio.schema.index import api_key_map

from conveyor.kafka_api.wire.versions import SERVED_APIS
from conveyor.records.record import encode_batch
from tests.clients.programs import Line, Program
from tests.clients.toolchains import built, java_jars, java_tool, require, run
from tests.vectors.recorded import FOLDER

SOURCES = Path(__file__).parent
PRODUCE, FETCH = 0, 1
TOPIC_IDS = 13
FIRST_ID, SECOND_ID = "-B1Pr33sEdCnZQCgyR5r9g", "ASNFZ4mrze8BI0VniavN7w"


def capture_program() -> Program:
    """The Java program that serializes messages."""
    require("default-jdk-headless", "java", "javac")
    jars = java_jars()

    def build(folder: Path) -> None:
        run(["javac", "-Xlint:all", "-Werror", "-cp", f"{jars}/*", *map(str, folder.glob("*.java"))], folder)

    return java_tool("Capture", built("capture", SOURCES.glob("*.java"), build))


def wanted(keys: Iterable[int]) -> Iterator[Line]:
    """The input of the program. Cases: full (no nulls), nulls, and plain: what the hand-packed encoders can say."""
    for key in keys:
        for version in SERVED_APIS[key].versions:
            message = {"key": key, "version": version, "correlation_id": 7_000_000 + key * 1000 + version}
            for kind in ("request", "response"):
                yield message | {"kind": kind, "case": "full", "nulls": False}
                yield message | {"kind": kind, "case": "nulls", "nulls": True}
            if key in (PRODUCE, FETCH):
                yield message | {"kind": "response", "case": "plain", "values": plain_values(key, version)}


def plain_values(key: int, version: int) -> dict[str, Any]:
    """A response with records, without any, and with errors; in the JSON of Kafka's JsonConverters."""
    partitions = _produced() if key == PRODUCE else _fetched(version)
    field = "partitionResponses" if key == PRODUCE else "partitions"
    topics: list[dict[str, Any]] = [
        {"topicId": FIRST_ID, field: partitions},
        {"topicId": SECOND_ID, field: partitions[:1]},
    ]
    if version < TOPIC_IDS:
        topics = [{"name": f"first-{version}", "topic": f"first-{version}", field: partitions}]
    answer: dict[str, Any] = {"throttleTimeMs": 250, "responses": topics}
    return answer if key == PRODUCE else answer | {"errorCode": 0, "sessionId": 77 if version >= 7 else 0}


def _produced() -> list[dict[str, Any]]:
    common = {"recordErrors": [], "logAppendTimeMs": -1, "logStartOffset": 4}
    return [
        common | {"index": 0, "errorCode": 0, "baseOffset": 5_000_000_000, "errorMessage": None},
        common
        | {"index": 1, "errorCode": 0, "baseOffset": 0, "errorMessage": None, "logAppendTimeMs": 1_700_000_000_123},
        common | {"index": 300, "errorCode": 10, "baseOffset": -1, "errorMessage": "too large"},
    ]


def _fetched(version: int) -> list[dict[str, Any]]:
    """Even versions ask for what is committed: aborted transactions are listed, though there are none."""
    common: dict[str, Any] = {"abortedTransactions": [] if version % 2 == 0 else None, "preferredReadReplica": -1}
    batches = [encode_batch([(1_700_000_000_000, b"key", b"v" * size, [])]) for size in (3, 300)]
    known = [
        common | {"partitionIndex": index, "errorCode": 0, "highWatermark": 9_000_000_000 + index, "logStartOffset": 4}
        | {"lastStableOffset": 9_000_000_000 + index, "records": b64encode(content).decode()}
        for index, content in enumerate([*batches, b""])
    ]  # fmt: skip
    unknown = {"errorCode": 1, "highWatermark": -1, "lastStableOffset": -1, "logStartOffset": -1, "records": ""}
    return [*known, common | unknown | {"partitionIndex": 300}]


def is_wanted(line: Line) -> bool:
    """Where nothing but items of arrays may be null, the case without nulls has it all."""
    return line["case"] != "nulls" or None in line["values"].values()


def captured(keys: Iterable[int]) -> list[Line]:
    return [line for line in capture_program().run(given=wanted(keys)) if is_wanted(line)]


def text_of(lines: Iterable[Line]) -> str:
    """A golden file: a JSON array with a line for each message."""
    kept = ({name: line[name] for name in ("version", "kind", "case", "hex", "values")} for line in lines)
    return "[\n" + ",\n".join(json.dumps(each, separators=(",", ":")) for each in kept) + "\n]\n"


def file_name(key: int) -> str:
    return f"{key:02}_{api_key_map[key]}.json"


def main() -> None:
    for key, lines in groupby(captured(SERVED_APIS), itemgetter("key")):
        (FOLDER / file_name(key)).write_text(text_of(lines))


if __name__ == "__main__":
    main()
