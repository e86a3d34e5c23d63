"""`conveyor pipeline metrics`: the traffic of topics, and their consumers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, TopicPartition

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.testing import Broker
from tests.pipeline.pipelines import PIPELINE_MASTER, pipeline
from tests.pipeline.topics import BASE_TIME_MS, Sent, create_topic, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW_START_MS = BASE_TIME_MS // 10_000 * 10_000
PNG = b"\x89PNG\r\n"


def metrics(broker: Broker, topic: str, to: Path, *arguments: str) -> str:
    return pipeline(
        "metrics", "--topic", topic, "--to", str(to), "--window", "10", *PIPELINE_MASTER,
        "--bootstrap", broker.bootstrap_servers, *arguments,
    )  # fmt: skip


def post(broker: Broker, path: str, body: dict[str, Any]) -> Any:
    with urlopen(Request(f"{broker.http_url}{path}", json.dumps(body).encode(), method="POST")) as response:
        return json.load(response)


def ack_one(broker: Broker, subscription: str) -> None:
    with urlopen(f"{broker.http_url}/subscriptions/{subscription}/messages?wait=20s") as response:
        message = json.load(response)["messages"][0]
    post(broker, f"/subscriptions/{subscription}/ack", {"ack_id": message["ack_id"]})


def commit(broker: Broker, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"{topic}-group"})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_traffic_lag_and_rates_are_counted_by_topic_and_consumer(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic, partitions=2)
    stamps = [0, 9_999, 10_000, 35_000]
    produce(broker, topic, [Sent(key=b"kk", value=b"1234", timestamp_ms=WINDOW_START_MS + at) for at in stamps])
    produce(broker, topic, [Sent(value=None, partition=1, timestamp_ms=WINDOW_START_MS)])
    commit(broker, topic, 1)
    subscription = f"{topic}-subscription"
    post(broker, f"/topics/{topic}/subscriptions", {"name": subscription, "start": "earliest"})
    ack_one(broker, subscription)
    to, picture = tmp_path / "metrics", tmp_path / "metrics.png"
    shown = metrics(broker, topic, to, "--picture", str(picture))
    assert f"{topic}: 5 records, at most 0.3/s in a window of 10 s" in shown
    assert f"group {topic}-group of {topic}: lag 3" in shown
    assert f"subscription {subscription} of {topic}: lag 4, oldest" in shown
    assert "p99 86,400 s)" in shown, "the records are years old"
    assert picture.read_bytes().startswith(PNG)
    ack_one(broker, subscription)
    ack_one(broker, subscription)
    metrics(broker, topic, to)
    windows = spark.read.parquet(str(to / "windows")).orderBy("start").selectExpr("unix_millis(start) AS at", "*")
    counted = [(row.at - WINDOW_START_MS, row.records, row.bytes, row.records_per_s) for row in windows.collect()]
    assert counted == [(0, 3, 12, 0.3), (10_000, 1, 6, 0.1), (30_000, 1, 6, 0.1)]
    consumers = spark.read.parquet(str(to / "consumers")).where(f"consumer = '{subscription}'").orderBy("at").collect()
    counts = [(row.kind, row.lag, row.acknowledged, row.retried, row.delay_acks) for row in consumers]
    assert counts == [("subscription", 4, 1, 0, 1), ("subscription", 2, 3, 0, 2)]
    assert [row.delay_since for row in consumers] == [None, consumers[0].at]
    assert [sum(row.ack_delays.counts) for row in consumers] == [1, 3]
    assert all(row.delay_mean_ms > row.delay_p99_ms == row.delay_p50_ms == 86_400_000 for row in consumers)


@pytest.mark.usefixtures("spark")
def test_a_directory_of_others_and_a_missing_topic_are_refused(broker: Broker, topic: str, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=f"unknown topic '{topic}'"):
        metrics(broker, topic, tmp_path / "new")
    create_topic(broker, topic)
    (tmp_path / "windows").mkdir()
    with pytest.raises(ClientError, match="holds other files"):
        metrics(broker, topic, tmp_path)
    assert (tmp_path / "windows").exists()
