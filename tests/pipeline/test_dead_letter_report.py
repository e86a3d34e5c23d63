"""`conveyor pipeline deadletters`: real dead letters, grouped, shown, exported and delivered again."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from conveyor.cli.pipeline import app
from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.testing import Broker
from tests.clients.rest_client import Rest
from tests.pipeline.topics import BASE_TIME_MS, Sent, create_topic, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")
REASONS = {"a": "no stock", "b": "no stock", "c": "timeout"}


def deadletters(broker: Broker, topic: str, *options: str) -> str:
    """Run the command in this process; returns what it printed. Raises its error."""
    arguments = ["deadletters", "--topic", f"{topic}.dlq", "--bootstrap", broker.bootstrap_servers]
    arguments += ["--master", "local[2]", *options]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def rest(broker: Broker) -> Iterator[Rest]:
    with closing(Rest(broker)) as connected:
        yield connected


@pytest.fixture
def name(rest: Rest, topic: str) -> str:
    """A subscription that has rejected the messages a, b and c, for two reasons."""
    name = f"{topic}-s"
    rest.create(topic, name)
    rest.publish(topic, *REASONS)
    for leased in rest.lease(name):
        rejected = {"ack_ids": [leased["ack_id"]], "reason": REASONS[leased["payload"]]}
        assert rest.post(f"/subscriptions/{name}/reject", rejected).status == 200
    while len(rest.get(f"/dlq/{name}").json["messages"]) < len(REASONS):
        pass
    return name


def test_dead_letters_are_grouped_shown_and_exported(
    spark: "SparkSession", broker: Broker, topic: str, name: str, tmp_path: Path
) -> None:
    produce(broker, f"{topic}.dlq", [Sent(value=b"no dead letter", headers=(("conveyor-dead-reason", b"forged"),))])
    out = tmp_path / "groups.csv"
    lines = deadletters(broker, topic, "--every", "3650 days", "--sample", "1", "--out", str(out)).splitlines()
    assert [line.split()[2:] for line in lines[1:3]] == [[name, "no", "stock", "2"], [name, "timeout", "1"]]
    assert lines[-1].split() == ["0-2", name, "timeout", "1", "-", "c"]
    rows = spark.read.csv(str(out), header=True).orderBy("letters").collect()
    assert [(row.reason, row.letters) for row in rows] == [("timeout", "1"), ("no stock", "2")]
    with pytest.raises(ClientError, match="exists: name another path with --out"):
        deadletters(broker, topic, "--out", str(out))


def test_a_selection_is_delivered_again_once(broker: Broker, topic: str, name: str, rest: Rest) -> None:
    options = ["--reason", "no stock", "--where", "value_text > 'a'", "--since", "-1h", "--redrive", "--yes"]
    assert deadletters(broker, topic, *options).endswith("redrove 1 dead letter\n")
    assert [message["payload"] for message in rest.lease(name)] == ["b"]
    shown = deadletters(broker, topic, "--redrive", "--yes", "--rate", "1000")
    assert shown.endswith("redrove 2 dead letters; 1 were none any more\n")
    assert [message["payload"] for message in rest.lease(name)] == ["a", "c"]
    assert rest.get(f"/subscriptions/{name}").json["dead"] == 0


def test_a_header_that_is_no_number_or_time_makes_no_dead_letter(broker: Broker, topic: str) -> None:
    create_topic(broker, f"{topic}.dlq")
    sound = {"reason": b"r", "topic": b"t", "subscription": b"s", "deliveries": b"1", "partition": b"0",
             "offset": b"7", "first-failure-ms": b"1", "last-failure-ms": b"%d" % BASE_TIME_MS}  # fmt: skip
    damages = [{}, {"offset": b"x"}, {"partition": b"9" * 30}, {"last-failure-ms": b"9" * 18}, {"deliveries": b"\xff"}]
    produce(
        broker,
        f"{topic}.dlq",
        [
            Sent(headers=tuple((f"conveyor-dead-{key}", value) for key, value in (sound | damage).items()))
            for damage in damages
        ],
    )
    assert deadletters(broker, topic).splitlines()[1:] == ["2023-11-14 22:00:00  s             r                  1"]


def test_wrong_options_are_said_in_one_line(broker: Broker, topic: str) -> None:
    create_topic(broker, f"{topic}.dlq")
    assert deadletters(broker, topic) == "no dead letters\n"
    for options, message in [
        (("--topic", "nowhere"), "unknown topic 'nowhere'"),
        (("--where", "reasn = 1"), "--where cannot be used: .*reasn"),
        (("--every", "soon"), "--every 'soon' cannot be used"),
    ]:
        with pytest.raises(ClientError, match=message) as raised:
            deadletters(broker, topic, *options)
        assert "\n" not in str(raised.value)
