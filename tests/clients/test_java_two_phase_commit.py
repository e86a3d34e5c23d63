"""Two-phase commit (KIP-939) by Kafka's own producer: prepared transactions wait for their verdict over restarts.

Kafka 4.3.1 and 4.4.0 have the parts of it, but no public methods; see TwoPhase.java.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from conveyor.transactions.transaction_value import NO_TIMEOUT_MS
from tests.clients.programs import Line, Running
from tests.clients.scenarios import make_topic
from tests.clients.toolchains import java_program
from tests.processes import BrokerProcess

PATIENCE_SECONDS = 60
FENCED = {"ProducerFencedException", "InvalidProducerEpochException"}
NO_VERDICT = ""
DEFAULT_TIMEOUT_MS = 60_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", "--set", "transactions.two_phase_commit_enable=true")
    process.start()
    yield process
    process.end()


def read(broker: BrokerProcess, topic: str, count: int, isolation_level: str = "read_committed") -> list[bytes | None]:
    """Wait for some records, and read on to the end. Returns their values."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "check",
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    is_end = False
    while len(values) < count or not is_end:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, values
        error = message.error()
        is_end = error is not None and error.code() == KafkaError._PARTITION_EOF
        assert error is None or is_end, error
        if error is None:
            values.append(message.value())
    consumer.close()
    return values


def restart(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


def prepare(broker: BrokerProcess, topic: str, value: str, verdict: str) -> tuple[Running, Line, str]:
    """Start a producer. Returns it, what it did at first, and the name of the transaction that it prepared then."""
    producer = java_program().start("two-phase", broker.kafka, topic, value, verdict)
    prepared = producer.until(lambda line: line["step"] != "recovered", PATIENCE_SECONDS)
    assert prepared["step"] == "prepared", prepared
    assert prepared["timeout_ms"] == NO_TIMEOUT_MS
    return producer, producer.seen[0], prepared["transaction"]


def last_step(producer: Running) -> Line:
    """Let a producer commit its prepared transaction. Returns what became of it."""
    producer.give([{}])
    return producer.finish()[-1]


def test_prepared_transactions_wait_for_the_verdict(broker: BrokerProcess, topic: str) -> None:
    make_topic(broker.kafka, topic, 1)
    killed, recovered, first = prepare(broker, topic, "first", NO_VERDICT)
    assert recovered == {"step": "recovered", "outcome": "nothing"}
    killed.kill()
    restart(broker)
    assert read(broker, topic, 0) == []
    assert read(broker, topic, 1, "read_uncommitted") == [b"first"]

    zombie, recovered, second = prepare(broker, topic, "second", first)
    assert recovered == {"step": "recovered", "outcome": "committed", "transaction": first}
    restart(broker)
    assert read(broker, topic, 1) == [b"first"]

    successor, recovered, third = prepare(broker, topic, "third", first)
    assert recovered == {"step": "recovered", "outcome": "aborted", "transaction": second}
    assert len({first, second, third}) == 3
    refused = last_step(zombie)
    assert refused["step"] == "refused"
    assert refused["error"] in FENCED
    assert last_step(successor)["step"] == "committed"
    assert read(broker, topic, 2) == [b"first", b"third"]


def test_setting_of_the_released_producer_has_no_effect(broker: BrokerProcess, topic: str) -> None:
    """docs/transactions.md warns of it. When a release changes this, TwoPhase.java can call its methods."""
    [initialized] = java_program().run("two-phase-released", broker.kafka, topic)
    assert initialized == {"step": "initialized", "timeout_ms": DEFAULT_TIMEOUT_MS}
