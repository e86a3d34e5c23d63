"""Schemas of archived payloads: typed columns, bad records, and schemas that change."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from typer.testing import CliRunner

from conveyor.cli.pipeline import app
from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.testing import Broker
from pyspark_conveyor.lake.lake_table import read_bad_records, read_lake
from tests.pipeline.lakes import arguments, expected, places
from tests.pipeline.topics import Sent, create_topic, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")
COLUMNS = "id long, name string, tags array<string>"


def archive_with(broker: Broker, lake: Path, topic: str, *options: str) -> str:
    done = CliRunner().invoke(app, [*arguments(broker, lake, topic), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def filled(broker: Broker, topic: str, payloads: Sequence[bytes | None]) -> None:
    create_topic(broker, topic)
    produce(broker, topic, [Sent(value=payload) for payload in payloads])


def payloads(spark: "SparkSession", lake: Path) -> list[dict[str, Any] | None]:
    rows = read_lake(spark, lake).orderBy("partition", "offset").collect()
    return [None if row.payload is None else row.payload.asDict(recursive=True) for row in rows]


def bad(spark: "SparkSession", lake: Path) -> dict[bytes, str]:
    return {row.value: row.reason for row in read_bad_records(spark, lake).collect()}


def test_json_payloads_become_typed_columns_and_bad_records_go_aside(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    broken = [b"{", b"\xff", b"[1]", b'{"id": "1"}', b'{"id": 1.5}', b'{"id": 9223372036854775808}', b"[" * 5000]
    filled(broker, topic, [b'{"id": 1, "name": "a", "tags": ["x", null], "more": 1}', None, b"{}", *broken])
    printed = archive_with(broker, tmp_path, topic, "--schema", COLUMNS)
    assert f"archived 10 records of {topic}" in printed
    assert f"7 of them do not match the schema and are in {tmp_path}/_bad" in printed
    empty = {"id": None, "name": None, "tags": None}
    assert payloads(spark, tmp_path) == [{"id": 1, "name": "a", "tags": ["x", None]}, None, empty]
    reasons = bad(spark, tmp_path)
    assert set(reasons) == set(broken)
    assert reasons[b'{"id": "1"}'] == "Expected `int | null`, got `str` - at `$.id`"
    assert places(tmp_path) == expected(topic, 3)
    produce(broker, topic, [Sent(value=b'{"id": 2}'), Sent(value=b"worse")])
    assert "1 of them" in archive_with(broker, tmp_path, topic)
    assert len(payloads(spark, tmp_path)) == 4
    assert b"worse" in bad(spark, tmp_path)


def test_a_schema_is_inferred_once_and_kept(spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path) -> None:
    filled(broker, topic, [b'{"id": 1, "rate": 1}', b'{"id": 2, "rate": 0.5, "place": {"x": 1, "y": null}}', b"?"])
    archive_with(broker, tmp_path, topic, "--schema", "infer")
    first = {"id": 1, "rate": 1.0, "place": None}
    assert payloads(spark, tmp_path) == [first, {"id": 2, "rate": 0.5, "place": {"x": 1}}]
    produce(broker, topic, [Sent(value=b'{"id": "three"}'), Sent(value=b'{"id": 4, "new": 1}')])
    archive_with(broker, tmp_path, topic, "--schema", "infer")
    assert payloads(spark, tmp_path)[2] == {"id": 4, "rate": None, "place": None}
    assert set(bad(spark, tmp_path)) == {b"?", b'{"id": "three"}'}


def test_a_schema_gains_fields_only_when_it_may(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    filled(broker, topic, [b'{"id": 1, "place": {"x": 1}}'])
    archive_with(broker, tmp_path, topic, "--schema", "id long, place struct<x: long>")
    produce(broker, topic, [Sent(value=b'{"id": 2, "place": {"x": 2, "y": 3}, "name": "b"}')])
    wider = ("--schema", "id long, place struct<x: long, y: long>, name string")
    with pytest.raises(ClientError, match=r"new fields \(place.y, name\): --evolve adds them"):
        archive_with(broker, tmp_path, topic, *wider)
    archive_with(broker, tmp_path, topic, *wider, "--evolve")
    assert payloads(spark, tmp_path) == [
        {"id": 1, "place": {"x": 1, "y": None}, "name": None},
        {"id": 2, "place": {"x": 2, "y": 3}, "name": "b"},
    ]
    for other in ("id long, name string", "id string, place struct<x: long, y: long>, name string"):
        with pytest.raises(ClientError, match=r"does not fit the lake's: field (place is missing|id was bigint)"):
            archive_with(broker, tmp_path, topic, "--schema", other, "--evolve")


def test_a_lake_without_a_schema_gets_one_only_when_it_may(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    filled(broker, topic, [b'{"id": 1}'])
    archive_with(broker, tmp_path, topic)
    with pytest.raises(ClientError, match="has records without a schema: --evolve"):
        archive_with(broker, tmp_path, topic, "--schema", "id long")
    produce(broker, topic, [Sent(value=b'{"id": 2}')])
    archive_with(broker, tmp_path, topic, "--schema", "id long", "--evolve")
    assert payloads(spark, tmp_path) == [None, {"id": 2}]


def test_a_batch_that_the_lake_did_not_commit_leaves_no_bad_record_twice(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    filled(broker, topic, [b'{"id": 1}', b"bad"])
    archive_with(broker, tmp_path, topic, "--schema", "id long")
    for name in ("_spark_metadata/0.compact", "_conveyor/checkpoint/commits/0", "_conveyor/checkpoint/commits/.0.crc"):
        (tmp_path / name).unlink()
    archive_with(broker, tmp_path, topic)
    assert (read_lake(spark, tmp_path).count(), read_bad_records(spark, tmp_path).count()) == (1, 1)
    assert len(list((tmp_path / "_bad").glob("topic=*/day=*/*"))) == 1


@pytest.mark.parametrize("lake_format", ["parquet", "delta"])
def test_batches_of_bad_records_only_are_committed(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path, lake_format: str
) -> None:
    filled(broker, topic, [b"bad"])
    archive_with(broker, tmp_path, topic, "--schema", "id long", "--format", lake_format)
    assert payloads(spark, tmp_path) == []
    produce(broker, topic, [Sent(value=b"worse")])
    archive_with(broker, tmp_path, topic)
    produce(broker, topic, [Sent(value=b'{"id": 1}')])
    archive_with(broker, tmp_path, topic)
    assert payloads(spark, tmp_path) == [{"id": 1}]
    assert set(bad(spark, tmp_path)) == {b"bad", b"worse"}


def avro_file(directory: Path, *fields: dict[str, Any]) -> Path:
    """A schema of a long `id`, and more fields."""
    file = directory / f"{len(fields)}.avsc"
    columns = [{"name": "id", "type": "long"}, *fields]
    file.write_text(json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": columns}))
    return file


def avro_payload(file: Path, document: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(file.read_text())), document)
    return stream.getvalue()


def test_avro_payloads_of_an_older_schema_stay_readable(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    time = {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None}
    counts = {"name": "counts", "type": {"type": "map", "values": "int"}, "default": {}}
    older, newer = avro_file(tmp_path, time), avro_file(tmp_path, time, counts)
    lake = tmp_path / "lake"
    good = avro_payload(older, {"id": 1, "at": 1_700_000_000_000})
    filled(broker, topic, [good, good + b"\x00\x00", b"\x02"])
    archive_with(broker, lake, topic, "--schema", str(older))
    assert sorted(bad(spark, lake).values()) == [
        "no Avro record of the schema: 2 bytes are left after the record",
        "no Avro record of the schema: EOFError",
    ]
    produce(
        broker, topic, [Sent(value=good), Sent(value=avro_payload(newer, {"id": 2, "at": None, "counts": {"a": 3}}))]
    )
    archive_with(broker, lake, topic, "--schema", str(newer), "--evolve")
    table = read_lake(spark, lake).selectExpr("payload.id", "unix_millis(payload.at) AS at", "payload.counts")
    rows = sorted(tuple(row) for row in table.collect())
    assert rows == [(1, 1_700_000_000_000, None), (1, 1_700_000_000_000, None), (2, None, {"a": 3})]


def protobuf_file(directory: Path, name: str = "orders.desc") -> Path:
    """A descriptor set of message shop.Order, as protoc writes it."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    order = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="id", number=1, type=kinds.TYPE_UINT64, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="tags", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    stamp = ".google.protobuf.Timestamp"
    order.field.add(name="at", number=3, type=kinds.TYPE_MESSAGE, type_name=stamp, label=kinds.LABEL_OPTIONAL)
    timestamps = descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    target = directory / name
    target.write_bytes(descriptor_pb2.FileDescriptorSet(file=[timestamps, file]).SerializeToString())
    return target


def test_protobuf_payloads_become_typed_columns(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    file = protobuf_file(tmp_path)
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(file.read_bytes()).file:
        pool.Add(each)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    full = order(id=2**64 - 1, tags=["a", "b"])
    full.at.FromMilliseconds(1_700_000_000_123)
    filled(broker, topic, [full.SerializeToString(), b"", b"\xff"])
    lake = tmp_path / "lake"
    archive_with(broker, lake, topic, "--schema", str(file), "--message", "shop.Order")
    table = read_lake(spark, lake).orderBy("offset")
    rows = table.selectExpr("int(payload.id % 10)", "payload.tags", "unix_millis(payload.at)").collect()
    assert [tuple(row) for row in rows] == [(5, ["a", "b"], 1_700_000_000_123), (0, [], None)]
    assert list(bad(spark, lake)) == [b"\xff"]
    with pytest.raises(ClientError, match=r"has no message shop\.Other"):
        archive_with(broker, lake, topic, "--schema", str(file), "--message", "shop.Other")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id", "is not a list of columns"),
        ("id interval", "is not a list of columns|have no type interval"),
        ("missing.avsc", "missing.avsc is no Avro schema"),
        ("missing.desc", "--message package.Name"),
        ("infer", "no sampled record is a JSON object"),
    ],
)
def test_a_schema_that_is_none_is_refused(
    broker: Broker, topic: str, tmp_path: Path, schema: str, message: str
) -> None:
    filled(broker, topic, [b"text"])
    with pytest.raises(ClientError, match=message) as raised:
        archive_with(broker, tmp_path, topic, "--schema", schema)
    assert "\n" not in str(raised.value)
