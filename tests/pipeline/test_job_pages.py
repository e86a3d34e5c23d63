"""The examples of docs/jobs print what the pages say, one after the other, as a reader would run them."""

import re
import shlex
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from conveyor.cli.app import app
from conveyor.testing import Broker
from tests.clients.rest_client import Rest
from tests.pipeline.topics import Sent, create_topic, produce

PAGES = Path(__file__).parents[2] / "docs" / "jobs"


@pytest.mark.usefixtures("spark")
def test_the_example_of_replay_runs(broker: Broker, tmp_path: Path, topic: str) -> None:
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, [Sent(value=b"%d" % line, partition=line % 2) for line in range(1000)])
    run_first_example("replay.md", broker, {"/data/": f"{tmp_path}/", "orders": topic, "id first": f"id {topic}"})


@pytest.mark.usefixtures("spark")
def test_the_example_of_dead_letters_runs(broker: Broker) -> None:
    with closing(Rest(broker)) as rest:
        rest.create("invoices", "billing")
        rest.publish("invoices", "invoice 7")
        ack_ids = [message["ack_id"] for message in rest.lease("billing")]
        rest.post("/subscriptions/billing/reject", {"ack_ids": ack_ids, "reason": "no stock"})
        while not rest.get("/dlq/billing").json["messages"]:
            pass
        run_first_example("deadletters.md", broker, {})
        assert [message["payload"] for message in rest.lease("billing")] == ["invoice 7"]


@pytest.mark.usefixtures("spark")
def test_the_example_of_mirror_runs(broker: Broker, tmp_path: Path, topic: str) -> None:
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, [Sent(value=b"%d" % line, partition=line % 2) for line in range(1000)])
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"{topic}-group"})
    consumer.commit(offsets=[TopicPartition(topic, number, 100) for number in range(2)], asynchronous=False)
    consumer.close()
    with Broker(memory=True) as west:
        addresses = {"127.0.0.1:9092": broker.bootstrap_servers, "127.0.0.1:9192": west.bootstrap_servers}
        names = {"orders": topic, "billing": f"{topic}-group", "./mirror": str(tmp_path / "mirror")}
        run_first_example("mirror.md", broker, addresses | names)


def run_first_example(page: str, broker: Broker, names: dict[str, str]) -> None:
    """Run the commands of a page's first example. names: texts of the page, and what they are in this test."""
    text = (PAGES / page).read_text()
    for before, after in names.items():
        text = text.replace(before, after)
    example = re.search(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert example is not None
    for part in example[1].split("$ conveyor ")[1:]:
        command, _, printed = part.partition("\n")
        done = CliRunner(env={"CONVEYOR_BOOTSTRAP": broker.bootstrap_servers}).invoke(
            app, shlex.split(command), catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        if printed:
            assert done.stdout == printed, command
