"""What is in the golden files, and its values as `codec.build` takes them."""

import json
from base64 import b64decode, urlsafe_b64decode
from copy import deepcopy
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.index import load_request_schema
from kio.serial import entity_reader, entity_writer

from conveyor.kafka_api.wire.codec import build
from conveyor.kafka_api.wire.skim import without_none
from conveyor.kafka_api.wire.versions import PRODUCE_KEY

FOLDER = Path(__file__).parent / "golden"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """A message as Kafka's Java client writes it. data: the frame, header included, without the length in front."""

    key: int
    version: int
    kind: str
    case: str
    data: bytes
    values: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.key}-v{self.version}-{self.kind}-{self.case}"

    @property
    def correlation_id(self) -> int:
        start = 4 if self.kind == "request" else 0
        return int.from_bytes(self.data[start : start + 4], "big")


def golden_requests() -> list[Golden]:
    """All requests. Produce has empty records where the Java client has written null ones, which no producer sends."""
    return [_with_records(message) for message in golden_messages() if message.kind == "request"]


def null_records() -> list[Golden]:
    """The produce requests as the Java client has written them, with null records."""
    return [message for message in golden_messages() if message.kind == "request" and message.key == PRODUCE_KEY]


def _with_records(golden: Golden) -> Golden:
    if golden.key != PRODUCE_KEY:
        return golden
    values = deepcopy(golden.values)
    for partition in (partition for topic in values["topicData"] for partition in topic["partitionData"]):
        partition["records"] = partition["records"] or ""
    schema = load_request_schema(golden.key, golden.version)
    _, header_size = entity_reader(schema.__header_schema__)(golden.data, 0)
    body = BytesIO()
    entity_writer(schema)(body, build(schema, kio_values(schema, values)))
    return replace(golden, data=golden.data[:header_size] + body.getvalue(), values=values)


def golden_messages() -> list[Golden]:
    return [message for path in sorted(FOLDER.glob("[0-9]*.json")) for message in _messages(path)]


def _messages(path: Path) -> list[Golden]:
    key = int(path.name.partition("_")[0])
    return [
        Golden(
            key=key,
            version=line["version"],
            kind=line["kind"],
            case=line["case"],
            data=bytes.fromhex(line["hex"]),
            values=line["values"],
        )
        for line in json.loads(path.read_text())
    ]


def kio_values(schema: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Values by Kafka's names (`maxWaitMs`) as values by kio's (`max_wait`). Raises AssertionError if one is left."""
    left = {name.lower(): value for name, value in values.items()}
    taken = {}
    for each in fields(schema):
        name = each.name.replace("_", "")
        if name not in left:
            name += "ms"
        if name in left:
            taken[each.name] = _value(each, left.pop(name))
    assert not left, f"{schema.__module__} has no {set(left)}"
    return taken


def _value(field: "Field[Any]", value: Any) -> Any:
    bare = without_none(field.type)
    kind = field.metadata.get("kafka_type", "")
    if get_origin(bare) is tuple:
        item = without_none(get_args(bare)[0])
        return None if value is None else tuple(_single(item, kind, each) for each in value)
    return _single(bare, kind, value)


def _single(declared: Any, kind: str, value: Any) -> Any:
    if value is None:
        return None
    if is_dataclass(declared):
        return kio_values(declared, value)
    if kind in ("bytes", "records"):
        return b64decode(value)
    if kind == "uuid":
        found = UUID(bytes=urlsafe_b64decode(value + "=="))
        return found if found.int else None
    if kind == "datetime_i64":
        return None if value == -1 else EPOCH + timedelta(milliseconds=value)
    return value
