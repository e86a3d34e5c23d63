"""`conveyor txn`, on a broker in memory."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from conveyor.cli.terminal.kafka_client import client_config
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.testing import Broker
from tests.unit.cli.commands import Run

PATIENCE_SECONDS = 20
NOW_MS = 1_700_000_000_000


@pytest.fixture
def producer(memory_broker: Broker, run_on_broker: Run) -> Iterator[Producer]:
    """Yield a producer with a transaction that is open in topic t."""
    run_on_broker("topic", "create", "t", "-p", "2")
    producer = Producer(client_config(memory_broker.bootstrap_servers, **{"transactional.id": "transfers"}))
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce("t", b"value", partition=1)
    producer.flush(PATIENCE_SECONDS)
    yield producer
    producer.purge()


@pytest.fixture
def run_with_hanging(memory_broker: Broker, producer: Producer, run_on_broker: Run) -> Run:
    """Let topic t have a transaction that no coordinator knows, beside the producer's."""

    async def append() -> None:
        batch = encode_batch(
            [(NOW_MS, None, b"hangs", ())],
            attributes=TRANSACTIONAL, producer_id=777, producer_epoch=3, base_sequence=0,
        )  # fmt: skip
        memory_broker._started_server().broker.partitions.table.find("t", 1).append(own_batch(batch), NOW_MS)

    asyncio.run_coroutine_threadsafe(append(), memory_broker._loop).result(PATIENCE_SECONDS)
    return run_on_broker


def described(run: Run) -> Any:
    return json.loads(run("txn", "describe", "transfers", "--json").out)


def test_transactional_ids_are_listed(run_on_broker: Run, request: pytest.FixtureRequest) -> None:
    assert run_on_broker("txn", "list").out == "no transactional ids\n"
    request.getfixturevalue("producer")
    [listed] = json.loads(run_on_broker("txn", "list", "--json").out)
    assert (listed["transactional_id"], listed["state"], listed["coordinator"]) == ("transfers", "Ongoing", 1)
    assert run_on_broker("txn", "list").out.splitlines()[0] == "transactional id  state    producer id  coordinator"
    assert run_on_broker("txn", "list", "--state", "Empty").out == "no transactional ids match\n"
    assert run_on_broker("txn", "list", "--open-longer-than", "3600").out == "no transactional ids match\n"
    wrong = run_on_broker("txn", "list", "--state", "ongoing")
    assert (wrong.exit_code, wrong.out) == (1, "")
    assert "expected one of Empty, Ongoing" in wrong.error


@pytest.mark.slow
def test_transaction_is_described(run_on_broker: Run, producer: Producer) -> None:
    document = described(run_on_broker)
    assert (document["state"], document["producer_epoch"], document["timeout_ms"]) == ("Ongoing", 0, 60_000)
    assert document["partitions"] == [["t", 1]]
    assert document["open_ms"] >= 0
    lines = run_on_broker("txn", "describe", "transfers").out.splitlines()
    assert lines[0] == "transactional id transfers: Ongoing"
    assert lines[-2:] == ["topic  partition", "t              1"]


@pytest.mark.parametrize("command", ["describe", "abort"])
def test_unknown_transactional_id(run_on_broker: Run, command: str) -> None:
    unknown = run_on_broker("txn", command, "nothing")
    assert unknown == (1, "", "conveyor: unknown transactional id 'nothing': see 'conveyor txn list'\n")


def test_transaction_is_aborted_and_its_producer_fenced(run_on_broker: Run, producer: Producer) -> None:
    refused = run_on_broker("txn", "abort", "transfers", given=b"no\n")
    assert refused.exit_code == 1
    assert described(run_on_broker)["state"] == "Ongoing"
    assert run_on_broker("txn", "abort", "transfers", "--yes").out == "aborted the transaction of transfers\n"
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_SECONDS)
    again = run_on_broker("txn", "abort", "transfers", "--yes")
    assert again.exit_code == 1
    assert "its state is Empty" in again.error


def test_hanging_transactions_are_found_and_aborted(run_with_hanging: Run) -> None:
    [hanging] = json.loads(run_with_hanging("txn", "find-hanging", "t", "--older-than", "0", "--json").out)
    assert (hanging["partition"], hanging["producer_id"], hanging["start_offset"]) == (1, 777, 1)
    assert run_with_hanging("txn", "find-hanging").out.splitlines()[1].split() == ["t", "1", "1", "777", "3"]
    known = run_with_hanging("txn", "abort-hanging", "t", "1", "0", "--yes")
    assert known.exit_code == 1
    assert "no hanging transaction begins at offset 0" in known.error
    aborted = run_with_hanging("txn", "abort-hanging", "t", "1", "1", "--yes")
    assert aborted.out == "aborted the transaction at offset 1 of t-1\n"
    assert run_with_hanging("txn", "find-hanging", "--older-than", "0").out == "no hanging transactions\n"
    assert described(run_with_hanging)["state"] == "Ongoing"


def test_hanging_transactions_of_an_unknown_topic(run_on_broker: Run) -> None:
    for command in (("find-hanging", "nothing"), ("abort-hanging", "nothing", "0", "0")):
        unknown = run_on_broker("txn", *command)
        assert unknown == (1, "", "conveyor: unknown topic 'nothing': see 'conveyor topic list'\n")
    run_on_broker("topic", "create", "t")
    unknown = run_on_broker("txn", "abort-hanging", "t", "1", "0")
    assert unknown == (1, "", "conveyor: topic 't' has no partition 1: it has 1 partition\n")
