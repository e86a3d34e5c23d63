"""A subscription as a stream: each message once in the table, and settled once its batch is committed."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
from pyspark.sql.streaming.datasource import ReadAllAvailable

from conveyor.testing import Broker
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.stream_runs import run_stream
from pyspark_conveyor.subscriptions.subscription_client import SubscriptionClient
from pyspark_conveyor.subscriptions.subscription_options import parse_subscription_options
from pyspark_conveyor.subscriptions.subscription_reader import SubscriptionReader
from tests.clients.throttling import alter, throttled
from tests.pipeline.topics import create_topic, numbered, numbers_of, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SubscriptionStream:
    """A subscription that is read, as far as it reaches, into files; the checkpoint stays from one run to the next."""

    def __init__(self, spark: "SparkSession", broker: Broker, topic: str, directory: Path) -> None:
        self._spark, self._broker = spark, broker
        self._subscription = f"{topic}-workers"
        self.table, self.checkpoint = directory / "table", directory / "checkpoint"
        answer = requests.post(
            f"{broker.http_url}/topics/{topic}/subscriptions", json={"name": self._subscription, "start": "earliest"}
        )
        assert answer.status_code == 201

    def run(self, **options: str) -> list[int]:
        """Read what is there, and return the messages of each micro-batch."""
        reader = (
            self._spark.readStream.format("conveyor")
            .option("subscription", self._subscription)
            .option("http", self._broker.http_url)
            .option("bootstrap.servers", self._broker.bootstrap_servers)
        )
        query = run_stream(
            reader.options(**options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(self.table))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
        )
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    def numbers(self) -> list[int]:
        return sorted(numbers_of(self._spark.read.parquet(str(self.table))))

    def ask(self, path: str = "", body: dict[str, Any] | None = None) -> dict[str, Any]:
        url = f"{self._broker.http_url}/subscriptions/{self._subscription}{path}"
        answer = requests.get(url) if body is None else requests.post(url, json=body)
        found: dict[str, Any] = answer.json()
        return found

    def unsettled(self) -> int:
        return int(self.ask()["unsettled"])


@pytest.fixture
def stream(spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path) -> SubscriptionStream:
    create_topic(broker, topic, partitions=2)
    return SubscriptionStream(spark, broker, topic, tmp_path)


def test_messages_are_settled_once_their_batch_is_committed(
    stream: SubscriptionStream, broker: Broker, topic: str
) -> None:
    produce(broker, topic, numbered(range(100), partitions=2))
    assert stream.run(maxMessagesPerTrigger="40") == [40, 40, 20]
    assert stream.unsettled() == 0
    produce(broker, topic, numbered(range(100, 110), partitions=2))
    assert stream.run() == [10]
    assert (stream.numbers(), stream.unsettled()) == (list(range(110)), 0)


def test_messages_of_others_are_left_alone(stream: SubscriptionStream, broker: Broker, topic: str) -> None:
    produce(broker, topic, numbered(range(20), partitions=2))
    held = [int(each["payload"]) for each in stream.ask("/messages?max_messages=5&visibility=10m")["messages"]]
    assert sum(stream.run()) == 15
    assert sorted([*stream.numbers(), *held]) == list(range(20))
    assert stream.unsettled() == 5


def test_a_batch_that_was_cut_off_is_read_again_as_it_was(
    stream: SubscriptionStream, broker: Broker, topic: str
) -> None:
    produce(broker, topic, numbered(range(30), partitions=2))
    stream.run()
    for directory, name in ((stream.checkpoint / "commits", "0"), (stream.table / "_spark_metadata", "0")):
        (directory / name).unlink()
        (directory / f".{name}.crc").unlink()
    assert stream.run() == [30]
    assert stream.numbers() == list(range(30))


@pytest.mark.parametrize(
    "stored", [{"subscription": "another", "batch": 1, "messages": []}, {"orders": {"0": 17}, "@ids": {}}]
)
def test_the_checkpoint_of_another_source_is_refused(stored: dict[str, Any]) -> None:
    options = {"subscription": "own", "http": "http://127.0.0.1:1", "bootstrap.servers": "127.0.0.1:1"}
    reader = SubscriptionReader(parse_subscription_options(options))
    with pytest.raises(PipelineError, match="the checkpoint does not hold messages of subscription 'own'"):
        reader.latestOffset(stored, ReadAllAvailable())
    with pytest.raises(PipelineError, match="the checkpoint does not hold messages of subscription 'own'"):
        reader.partitions(stored, stored)


def hang_up(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(answer)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", b"no HTTP\r\n\r\n"])
def test_a_broker_that_hangs_up_is_an_error_of_the_pipeline(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:
        done = threads.submit(hang_up, listener, answer)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(PipelineError, match=f"no broker answers at {address}"):
            SubscriptionClient(address, "own", None).depth()
        done.result()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"visibility": "300"}, "option 'visibility' is '300': it takes a duration such as 30s"),
        ({"http": "127.0.0.1:8080"}, "it takes an address such as http://127.0.0.1:8080"),
        ({"startingOffsets": "latest"}, "unknown option 'startingoffsets' with a subscription"),
        ({"subscription": "none"}, "subscription 'none': "),
    ],
)
def test_a_wrong_option_is_named(stream: SubscriptionStream, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=f"PipelineError: .*{message}"):
        stream.run(**options)


def test_client_waits_while_it_is_over_a_quota() -> None:
    with Broker(memory=True, manual_clock=True) as broker, ThreadPoolExecutor() as threads:
        url = f"{broker.http_url}/topics"
        assert requests.post(url, json={"name": "t"}).status_code == 201
        assert requests.post(f"{url}/t/subscriptions", json={"name": "s", "start": "earliest"}).status_code == 201
        for _ in range(2):
            assert requests.post(f"{url}/t/messages", data=bytes(10_000)).status_code == 201
        client = SubscriptionClient(broker.http_url, "s", None)
        alter(broker, "user", None, consumer_byte_rate=1000)
        assert len(client.lease(1, "1h")) == 1
        waiting = threads.submit(client.lease, 1, "1h")
        while not throttled(broker, "consumer_byte_rate"):
            pass
        broker.clock.advance(seconds=1)
        assert len(waiting.result(timeout=60)) == 1
        alter(broker, "user", None, consumer_byte_rate=1)
        assert requests.get(f"{url}/t/messages").status_code == 200
        with pytest.raises(PipelineError, match="the quota consumer_byte_rate is exceeded: retry in "):
            client.lease(1, "1h")
