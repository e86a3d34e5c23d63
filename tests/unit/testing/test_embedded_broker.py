"""The broker for tests: in memory and in a directory, on a manual clock, from synchronous and asynchronous code."""

import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from conveyor.kernel.errors import SettingsError, StartupError
from conveyor.testing import Broker, MemoryDisk


def produce(broker: Broker, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce("t", value.encode())
    assert producer.flush(20) == 0


def consumer_of(broker: Broker) -> Any:
    """Return a consumer at the beginning of the topic."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"}
    consumer = Consumer(config | {"enable.partition.eof": True})
    consumer.assign([TopicPartition("t", 0, 0)])
    return consumer


def consume(broker: Broker) -> list[str]:
    """Return the values of all records in the topic."""
    consumer = consumer_of(broker)
    values = []
    while (message := consumer.poll(20)) is not None and message.error() is None:
        values.append(message.value().decode())
    consumer.close()
    return values


def test_records_are_kept_in_memory() -> None:
    with Broker(memory=True) as broker:
        produce(broker, "a", "b")
        assert consume(broker) == ["a", "b"]
        assert isinstance(broker.disk, MemoryDisk)


def test_records_are_kept_in_a_temporary_directory() -> None:
    with Broker() as broker:
        produce(broker, "a")
        assert consume(broker) == ["a"]
        directory = Path(broker._storage)  # type: ignore[arg-type]
        assert (directory / "logs" / "t-0" / f"{0:020d}.log").is_file()
    assert not directory.exists()


def test_a_given_directory_is_kept(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        produce(broker, "a")
    with Broker(str(tmp_path / "data")) as broker:
        produce(broker, "b")
        assert consume(broker) == ["a", "b"]


@pytest.mark.parametrize("memory", [True, False])
def test_a_restart_keeps_data_and_ports(memory: bool) -> None:
    with Broker(memory=memory) as broker:
        produce(broker, "a")
        before = broker.bootstrap_servers, broker.http_url
        broker.stop()
        broker.start()
        assert (broker.bootstrap_servers, broker.http_url) == before
        assert consume(broker) == ["a"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let nobody listen at a port that is held")
def test_nobody_takes_the_ports_of_a_stopped_broker() -> None:
    with Broker(memory=True) as broker:
        addresses = [address.rsplit(":", 1) for address in (broker.bootstrap_servers, broker.http_url[7:])]
        broker.stop()
        for host, port in addresses:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))
        broker.start()
    for host, port in addresses:
        socket.create_server((host, int(port))).close()


def test_a_broker_may_be_stopped_twice() -> None:
    broker = Broker(memory=True).start()
    broker.stop()
    broker.stop()


def test_a_running_broker_cannot_be_started_again() -> None:
    with Broker(memory=True) as broker:
        with pytest.raises(ValueError, match="already running"):
            broker.start()
        produce(broker, "a")
        assert consume(broker) == ["a"]


@pytest.mark.parametrize("where", [{"memory": True}, {"disk": MemoryDisk()}])
def test_a_directory_and_memory_exclude_each_other(where: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in a directory or in memory"):
        Broker(tmp_path, **where)


async def test_an_asynchronous_test_may_use_the_broker() -> None:
    async with Broker(memory=True) as broker:
        await asyncio.to_thread(produce, broker, "a")
        assert await asyncio.to_thread(consume, broker) == ["a"]


def test_brokers_do_not_disturb_each_other() -> None:
    with Broker(memory=True) as one, Broker(memory=True) as other:
        produce(one, "one")
        produce(other, "other")
        assert (consume(one), consume(other)) == (["one"], ["other"])


def test_settings_are_passed_by_name() -> None:
    with Broker(memory=True, settings={"broker.num_partitions": 3}) as broker:
        produce(broker, "a")
        assert broker._started_server().broker.metadata.image.partition_count == 3


@pytest.mark.parametrize("memory", [True, False])
def test_an_invalid_setting_is_raised_and_leaves_nothing_behind(memory: bool) -> None:
    broker = Broker(memory=memory, settings={"broker.num_partition": 3})
    with pytest.raises(SettingsError, match="unknown setting"), broker:
        raise AssertionError("the broker has not started")
    if not memory:
        assert not Path(broker._storage).exists()  # type: ignore[arg-type]


def test_a_directory_in_use_is_raised(tmp_path: Path) -> None:
    with Broker(tmp_path), pytest.raises(StartupError, match="in use by another broker"):
        Broker(tmp_path).start()


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    """Records have the broker's time."""
    with Broker(memory=True, manual_clock=True) as broker:
        start_ms = broker.clock.now_ms()
        produce(broker, "a", "b")
        broker.clock.advance(seconds=3600, ms=1)
        produce(broker, "c")
        consumer = consumer_of(broker)
        stamps = [message.timestamp()[1] - start_ms for message in consumer.consume(3, 20)]
        assert stamps == [0, 0, 3_600_001]
        consumer.close()


def test_a_broker_without_a_manual_clock_has_none() -> None:
    with Broker(memory=True) as broker, pytest.raises(ValueError, match="manual_clock=True"):
        broker.clock.advance(seconds=1)


@pytest.mark.parametrize(
    "asked",
    [
        lambda broker: broker.bootstrap_servers,
        lambda broker: broker.http_url,
        lambda broker: broker.clock.advance(seconds=1),
    ],
)
def test_error_of_a_broker_that_was_not_started_says_how_to_start_it(asked: Callable[[Broker], object]) -> None:
    with pytest.raises(ValueError, match=r"start it first, with `with Broker\(\) as broker:`"):
        asked(Broker(memory=True, manual_clock=True))


def test_a_bug_in_the_broker_is_raised_in_the_test() -> None:
    async def bug() -> None:
        raise AssertionError("a bug")

    async def start() -> None:
        broker._started_server().broker.tasks.start(bug())

    broker = Broker(memory=True).start()
    asyncio.run_coroutine_threadsafe(start(), broker._loop).result()
    with pytest.raises(AssertionError, match="a bug"):
        broker.stop()
