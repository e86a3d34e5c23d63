"""Virtual time moves from deadline to deadline, and each deadline has all its consequences."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from conveyor.testing import Broker
from conveyor.testing.manual_clock import DEFAULT_START_MS

MINUTE_MS = 60_000
EVERY_FIVE = {"name": "s", "topic": "t", "cron": "*/5 * * * *", "payload": "go"}


@pytest.fixture(params=["memory", "directory"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(memory=request.param == "memory", manual_clock=True) as running:
        yield running


def ask(broker: Broker, method: str, path: str, body: object = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    asked = Request(broker.http_url + path, content, {"Content-Type": "application/json"}, method=method)
    with urlopen(asked, timeout=20) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def create_topic(broker: Broker, name: str = "t", **config: str) -> None:
    ask(broker, "POST", "/topics", {"name": name, "config": config})


def timestamps(broker: Broker) -> list[int]:
    """Return the timestamps of the records in the topic."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition("t", 0, 0)])
    timestamps_ms = []
    while (message := consumer.poll(20)) is not None and message.error() is None:
        timestamps_ms.append(message.timestamp()[1])
    consumer.close()
    return timestamps_ms


def test_a_schedule_fires_at_each_of_its_times(broker: Broker) -> None:
    create_topic(broker)
    ask(broker, "POST", "/schedules", EVERY_FIVE)
    start_ms = broker.clock.now_ms()
    broker.clock.advance(seconds=3600)
    fired = timestamps(broker)
    assert len(fired) == 12
    assert all(
        start_ms < fired_ms <= start_ms + 60 * MINUTE_MS and fired_ms % (5 * MINUTE_MS) == 0 for fired_ms in fired
    )
    assert all(later - earlier == 5 * MINUTE_MS for earlier, later in pairwise(fired))


def test_consequences_of_a_firing_happen_at_their_own_time_within_the_move(broker: Broker) -> None:
    """Each firing publishes a message with a delay of a minute."""
    create_topic(broker)
    create_topic(broker, "later", **{"delay.target": "t", "message.timestamp.type": "CreateTime"})
    delayed = {"topic": "later", "headers": {"conveyor-delay-ms": str(MINUTE_MS)}}
    ask(broker, "POST", "/schedules", EVERY_FIVE | delayed)
    broker.clock.advance(seconds=3600)
    found = timestamps(broker)
    assert len(found) == 12
    assert {fired_ms % (5 * MINUTE_MS) for fired_ms in found} == {MINUTE_MS}


def test_a_message_is_retried_and_dead_lettered_within_one_move(broker: Broker) -> None:
    create_topic(broker)
    ask(broker, "POST", "/topics/t/subscriptions", {"name": "s", "max_deliveries": 1, "start": "earliest"})
    ask(broker, "POST", "/topics/t/messages", {"payload": "x"})
    assert len(ask(broker, "GET", "/subscriptions/s/messages?visibility=30s")["messages"]) == 1
    broker.clock.advance(seconds=30)
    [letter] = ask(broker, "GET", "/dlq/s")["messages"]
    assert letter["payload"] == '{"payload": "x"}'


def test_a_delayed_message_of_a_kafka_client_is_due_by_the_brokers_clock(broker: Broker) -> None:
    """The client's clock shows another time."""
    create_topic(broker)
    ask(broker, "POST", "/topics/t/subscriptions", {"name": "s", "start": "earliest"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("t", b"later", headers=[("conveyor-delay-ms", b"60000")])
    assert producer.flush(20) == 0
    broker.clock.advance(ms=MINUTE_MS - 1)
    assert ask(broker, "GET", "/subscriptions/s/messages")["messages"] == []
    broker.clock.advance(ms=1)
    assert len(ask(broker, "GET", "/subscriptions/s/messages")["messages"]) == 1


def test_clients_wait_for_messages_by_their_own_clocks(broker: Broker) -> None:
    """The broker's clock stands still."""
    create_topic(broker)
    ask(broker, "POST", "/topics/t/subscriptions", {"name": "s", "start": "earliest"})
    assert ask(broker, "GET", "/subscriptions/s/messages?wait=100ms")["messages"] == []
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    partition = TopicPartition("t", 0, 0)
    consumer.assign([partition])
    assert consumer.poll(1) is None
    assert consumer.get_watermark_offsets(partition, timeout=20) == (0, 0), "a pending fetch would delay this request"
    consumer.close()


def test_a_consumer_joins_its_group_while_time_stands_still(broker: Broker) -> None:
    create_topic(broker)
    ask(broker, "POST", "/topics/t/messages", {"payload": "x"})
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    message = consumer.poll(20)
    assert message is not None
    assert message.value() == b'{"payload": "x"}'
    consumer.close()


def test_a_due_compaction_has_ended_before_time_moves_on(broker: Broker) -> None:
    create_topic(broker, **{"cleanup.policy": "compact", "segment.bytes": "16384", "min.cleanable.dirty.ratio": "0.01"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(30):
        producer.produce("t", bytes(1_000), b"key-%d" % (number % 2))
        assert producer.flush(20) == 0
    broker.clock.advance(seconds=60)
    assert len(timestamps(broker)) < 20


def test_time_passes_while_the_broker_is_stopped(broker: Broker) -> None:
    """Of the firings in that time only the last one happens, at the start."""
    create_topic(broker)
    ask(broker, "POST", "/schedules", EVERY_FIVE)
    broker.stop()
    broker.clock.advance(seconds=3600)
    now_ms = broker.clock.now_ms()
    broker.start()
    broker.clock.advance()
    assert timestamps(broker) == [now_ms]


def test_timers_set_before_a_restart_are_not_called_after_it(broker: Broker) -> None:
    create_topic(broker)
    ask(broker, "POST", "/schedules", EVERY_FIVE)
    for _ in range(3):
        broker.stop()
        broker.start()
    broker.clock.advance(seconds=600)
    assert len(timestamps(broker)) == 2


def test_the_wall_clock_may_be_set(broker: Broker) -> None:
    create_topic(broker)
    ask(broker, "POST", "/schedules", EVERY_FIVE)
    before_ms = broker.clock.now_ms()
    broker.clock.set_wall_clock(by_seconds=3600)
    assert timestamps(broker) == [before_ms + 60 * MINUTE_MS]


@pytest.mark.parametrize("memory", [True, False])
def test_a_clock_begins_at_the_given_time(memory: bool) -> None:
    begin = datetime(2024, 2, 29, 23, 59, tzinfo=UTC)
    with Broker(memory=memory, manual_clock=begin) as broker:
        assert broker.clock.now_ms() == begin.timestamp() * 1000
    with Broker(memory=memory, manual_clock=True) as broker:
        assert broker.clock.now_ms() == DEFAULT_START_MS
    with pytest.raises(ValueError, match="needs a time zone"):
        Broker(manual_clock=datetime(2024, 2, 29))  # noqa: DTZ001


def set_timer(broker: Broker, delay_ms: int, callback: Callable[[], None]) -> None:
    """Set a timer as the broker does."""

    async def on_loop() -> None:
        broker._started_server().broker.clock.call_later(delay_ms, callback)

    asyncio.run_coroutine_threadsafe(on_loop(), broker._loop).result()


def test_a_bug_during_a_move_is_raised_and_stops_the_broker() -> None:
    def bug() -> None:
        raise AssertionError("a bug")

    running = Broker(memory=True, manual_clock=True).start()
    set_timer(running, 1000, bug)
    with pytest.raises(RuntimeError, match="the broker has stopped"):
        running.clock.advance(seconds=3600)
    with pytest.raises(AssertionError, match="a bug"):
        running.stop()


def test_timers_that_stop_time_are_an_error(broker: Broker) -> None:
    def again() -> None:
        set_again(0, again)

    set_again = broker._started_server().broker.clock.call_later
    set_timer(broker, 1, again)
    with pytest.raises(RuntimeError, match="time does not advance"):
        broker.clock.advance(seconds=1)


def test_time_does_not_go_back(broker: Broker) -> None:
    with pytest.raises(ValueError, match="time cannot move back"):
        broker.clock.advance(seconds=-1)
