"""`conveyor pipeline replay`: what a lake gives back to topics and subscriptions."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from conveyor.cli.pipeline import app
from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.testing import Broker
from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.jobs.replay_job import ReplaySelection, ReplayTarget
from pyspark_conveyor.jobs.replay_job import replay as replay_lake
from tests.clients.rest_client import Rest
from tests.pipeline.lakes import archive
from tests.pipeline.topics import BASE_TIME_MS, Sent, create_topic, numbered, numbers_of, produce, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("spark")


def replay(broker: Broker, lake: Path, *options: str) -> str:
    """Run the command in this process; returns what it printed. Raises its error."""
    arguments = ["replay", "--from", str(lake), "--bootstrap", broker.bootstrap_servers]
    done = CliRunner().invoke(app, [*arguments, "--master", "local[2]", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def by_partition(table: "DataFrame") -> dict[int, list[tuple[Any, ...]]]:
    """All parts of the records, in the order of each partition."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in table.orderBy("partition", "offset").collect():
        found.setdefault(row.partition, []).append((row.key, row.value, row.timestamp, row.headers))
    return found


def filled_lake(broker: Broker, topic: str, lake: Path, count: int = 100) -> None:
    """A lake of numbered records in two partitions, and an empty topic to replay it to."""
    for name in (topic, f"{topic}-again"):
        create_topic(broker, name, partitions=2)
    produce(broker, topic, numbered(range(count), partitions=2))
    archive(broker, lake, topic)


def test_every_part_of_a_record_and_the_order_come_back(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic, partitions=3)
    create_topic(broker, f"{topic}-again", partitions=3)
    odd = [
        Sent(value=None, key=b"deleted", partition=0),
        Sent(value=b"", key=b"", partition=1, headers=(("a", b"1"), ("a", None), ("b", b""))),
        Sent(value=bytes(range(256)), partition=2, timestamp_ms=BASE_TIME_MS - 86_400_000),
    ]
    produce(broker, topic, [*odd, *numbered(range(300), partitions=3)])
    archive(broker, tmp_path, topic)
    shown = replay(broker, tmp_path, "--to", f"{topic}-again", "--same-partitions")
    assert shown == f"replayed 303 records of {tmp_path} to {topic}-again\n"
    assert by_partition(read(spark, broker, f"{topic}-again")) == by_partition(read(spark, broker, topic))


def test_keys_are_placed_and_the_order_of_each_source_partition_is_kept(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic, partitions=4)
    create_topic(broker, f"{topic}-again", partitions=2)
    records = [Sent(value=b"%d" % n, key=b"k%d" % (n % 5) if n % 2 else None, partition=n % 4) for n in range(200)]
    produce(broker, topic, records)
    archive(broker, tmp_path, topic)
    replay(broker, tmp_path, "--to", f"{topic}-again")
    copies = by_partition(read(spark, broker, f"{topic}-again"))
    values = {number: [int(record[1]) for record in part] for number, part in copies.items()}
    assert sorted(values[0] + values[1]) == list(range(200))
    for part in values.values():
        for source in range(4):
            kept = [value for value in part if value % 4 == source]
            assert kept == sorted(kept)
    places = {(record[0], number) for number, part in copies.items() for record in part if record[0] is not None}
    assert len(places) == 5, "one partition for each key"


def test_a_time_range_and_a_filter_select(spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path) -> None:
    filled_lake(broker, topic, tmp_path)
    options = ["--since", "2023-11-14T22:13:30+00:00", "--until", "2023-11-14T22:13:40+00:00"]
    options += ["--where", "CAST(value_text AS INT) % 3 = 0", "--at-least-once"]
    replay(broker, tmp_path, "--to", f"{topic}-again", *options)
    assert sorted(numbers_of(read(spark, broker, f"{topic}-again"))) == [12, 15, 18]


def test_an_interrupted_job_continues_and_a_repeated_one_writes_nothing(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    filled_lake(broker, topic, tmp_path)
    target = ReplayTarget(topic=f"{topic}-again", same_partitions=True)
    brokers = Brokers(bootstrap_servers=broker.bootstrap_servers)

    def run(stops_at: int | None = None) -> int:
        def progress(done: int, total: int) -> None:
            assert total == 100
            if done == stops_at:
                raise InterruptedError

        return replay_lake(
            lambda: spark, brokers, tmp_path, ReplaySelection(), target, progress,
            rate=1000, job_id=f"{topic}-job", slice_records=40,
        )  # fmt: skip

    with pytest.raises(InterruptedError):
        run(stops_at=40)
    assert run() == 60
    assert run() == 0
    assert by_partition(read(spark, broker, target.topic)) == by_partition(read(spark, broker, topic))
    with pytest.raises(ClientError, match="has begun with other options or another state of the lake"):
        replay(broker, tmp_path, "--to", target.topic, "--job-id", f"{topic}-job")


def test_a_slice_that_was_written_but_not_noted_is_not_written_again(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled_lake(broker, topic, tmp_path, count=10)
    with monkeypatch.context() as patch:
        patch.setattr("pyspark_conveyor.jobs.replay_job.ReplayProgress.note", lambda *_: None)
        replay(broker, tmp_path, "--to", f"{topic}-again", "--job-id", topic)
    replay(broker, tmp_path, "--to", f"{topic}-again", "--job-id", topic)
    assert sorted(numbers_of(read(spark, broker, f"{topic}-again"))) == list(range(10))


def test_a_subscription_receives_the_records_alone(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    filled_lake(broker, topic, tmp_path, count=10)
    with closing(Rest(broker)) as rest:
        _check_subscriptions(spark, broker, rest, topic, tmp_path)


def _check_subscriptions(spark: "SparkSession", broker: Broker, rest: Rest, topic: str, tmp_path: Path) -> None:
    for name in ("first", "second"):
        rest.post(f"/topics/{topic}/subscriptions", {"name": f"{topic}-{name}", "start": "latest"})
    replay(broker, tmp_path, "--to-subscription", f"{topic}-first")
    assert read(spark, broker, topic).count() == 20
    assert len(rest.lease(f"{topic}-first", max_messages=50)) == 10
    assert rest.lease(f"{topic}-second", max_messages=50, wait="0s") == []


def test_what_cannot_be_replayed_is_said_in_one_line(broker: Broker, topic: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    filled_lake(broker, topic, lake, count=2)
    create_topic(broker, f"{topic}-small")
    again = ("--to", f"{topic}-again")
    for options, message in [
        (("--to", "nowhere"), "unknown topic 'nowhere'"),
        ((*again, "--topic", "other"), f"topic 'other' is not in {lake}, which has {topic}"),
        ((*again, "--where", "valeu = 1"), "--where cannot be used: .*valeu"),
        ((*again, "--since", "5"), "--since 5: expected a time such as"),
        ((*again, "--to-subscription", "x"), "give either --to or --to-subscription"),
        (("--to", f"{topic}-small", "--same-partitions"), "has 1 partitions, and the lake has records of partition 1"),
    ]:
        with pytest.raises(ClientError, match=message) as raised:
            replay(broker, lake, *options)
        assert "\n" not in str(raised.value)
    with pytest.raises(ClientError, match="is not a lake: name a directory"):
        replay(broker, tmp_path, *again)
    lake.rename(tmp_path / "moved")
    with pytest.raises(ClientError, match=r"was made as .*: move it back"):
        replay(broker, tmp_path / "moved", *again)
