"""`conveyor pipeline transform`: topics to a topic, by SQL and by functions."""

import json
import sys
from pathlib import Path

import pytest

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.testing import Broker
from tests.pipeline.pipelines import committed, transform, values
from tests.pipeline.topics import BASE_TIME_MS, Sent, create_topic, produce

pytestmark = pytest.mark.usefixtures("spark")
MINUTE_MS = 60_000
ORDERS = "id long, customer string, amount double"


def order(number: int, customer: str = "ann", amount: float = 1.5, *, at_ms: int = BASE_TIME_MS) -> Sent:
    value = json.dumps({"id": number, "customer": customer, "amount": amount}).encode()
    return Sent(value=value, key=customer.encode(), timestamp_ms=at_ms)


@pytest.fixture
def orders(broker: Broker, topic: str) -> str:
    for name in (topic, f"{topic}-out", f"{topic}-dead"):
        create_topic(broker, name)
    return topic


def test_sql_selects_fields_and_each_record_arrives_once(broker: Broker, orders: str, tmp_path: Path) -> None:
    arguments = ("--source", f"orders={orders}", "--to", f"{orders}-out", "--schema", ORDERS)
    query = ("--sql", "SELECT key, payload.id, payload.amount * 2 AS double FROM orders WHERE payload.id > 1")
    produce(broker, orders, [order(number) for number in range(4)])
    assert "4 records read" in transform(broker, tmp_path, *arguments, *query)
    produce(broker, orders, [order(4)])
    assert "1 records read" in transform(broker, tmp_path, *arguments, *query)
    assert values(broker, f"{orders}-out") == [f'{{"id":{number},"double":3.0}}' for number in (2, 3, 4)]
    assert {record.key() for record in committed(broker, f"{orders}-out")} == {b"ann"}


def test_records_that_cannot_be_decoded_become_dead_letters(broker: Broker, orders: str, tmp_path: Path) -> None:
    broken = Sent(value=b"{broken", key=b"k", headers=(("a", b"1"),))
    produce(broker, orders, [order(1), broken, Sent(value=b'{"id": "one"}'), order(2)])
    transform(
        broker, tmp_path,
        "--source", f"orders={orders}", "--to", f"{orders}-out", "--schema", ORDERS,
        "--sql", "SELECT payload.id FROM orders", "--dead-letters", f"{orders}-dead",
    )  # fmt: skip
    assert values(broker, f"{orders}-out") == ['{"id":1}', '{"id":2}']
    first, second = committed(broker, f"{orders}-dead")
    headers = dict(first.headers())
    assert (first.key(), first.value(), headers.pop("a")) == (b"k", b"{broken", b"1")
    assert headers.pop("conveyor-dead-reason")
    origin = {"conveyor-dead-topic": orders, "conveyor-dead-partition": "0", "conveyor-dead-offset": "1"}
    assert headers == {name: text.encode() for name, text in origin.items()}
    assert "Expected `int | null`, got `str`" in dict(second.headers())["conveyor-dead-reason"].decode()


def test_without_dead_letters_a_bad_record_ends_the_job(broker: Broker, orders: str, tmp_path: Path) -> None:
    produce(broker, orders, [order(1), Sent(value=b"{broken")])
    with pytest.raises(ClientError, match=rf"a record cannot be decoded \({orders} partition 0 offset 1\)") as raised:
        transform(
            broker, tmp_path,
            "--source", f"orders={orders}", "--to", f"{orders}-out", "--schema", ORDERS,
            "--sql", "SELECT 'x' AS value FROM orders",
        )  # fmt: skip
    assert "\n" not in str(raised.value)
    assert committed(broker, f"{orders}-out") == []


FUNCTION = """
from pyspark.sql import functions as F

@F.udf("string")
def judged(amount):
    return None if amount < 100 else "too dear"

def rate(orders, rates):
    joined = orders.join(rates, orders.payload.customer == rates.customer)
    return joined.select("key", "payload.id", "rate", judged("payload.amount").alias("reason"))
"""


def test_a_function_enriches_with_a_table_and_gives_reasons(
    broker: Broker, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("rating.py").write_text(FUNCTION)
    Path("rates.csv").write_text("customer,rate\nann,0.1\nbob,0.2\n")
    produce(broker, orders, [order(1), order(2, "bob"), order(3, "eve"), order(4, amount=200)])
    transform(
        broker, tmp_path / "checkpoint",
        "--source", f"orders={orders}", "--to", f"{orders}-out", "--schema", ORDERS, "--table", "rates=rates.csv",
        "--function", "rating:rate", "--dead-letters", f"{orders}-dead",
    )  # fmt: skip
    assert values(broker, f"{orders}-out") == ['{"id":1,"rate":0.1}', '{"id":2,"rate":0.2}']
    (dead,) = committed(broker, f"{orders}-dead")
    assert dict(dead.headers()) == {"conveyor-dead-reason": b"too dear"}


def test_windows_close_when_the_watermark_passes(broker: Broker, orders: str, tmp_path: Path) -> None:
    query = "SELECT window.start, sum(payload.amount) AS amount FROM orders GROUP BY window(event_time, '1 minute')"
    arguments = (
        "--source", f"orders={orders}", "--to", f"{orders}-out", "--schema", ORDERS, "--watermark", "1 minute",
        "--sql", query,
    )  # fmt: skip
    start_ms = BASE_TIME_MS // MINUTE_MS * MINUTE_MS
    produce(broker, orders, [order(1, at_ms=start_ms), order(2, at_ms=start_ms + 59_999)])
    produce(broker, orders, [order(3, at_ms=start_ms + 3 * MINUTE_MS)])
    transform(broker, tmp_path, *arguments)
    assert values(broker, f"{orders}-out") == ['{"start":"2023-11-14T22:13:00.000Z","amount":3.0}']


def test_two_streams_are_joined_and_repeated_records_left_out(broker: Broker, orders: str, tmp_path: Path) -> None:
    create_topic(broker, f"{orders}-paid")
    produce(broker, orders, [order(1), order(1), order(2), order(3)])
    produce(broker, f"{orders}-paid", [Sent(value=b"1"), Sent(value=b"3"), Sent(value=b"9")])
    transform(
        broker, tmp_path,
        "--source", f"orders={orders}", "--source", f"paid={orders}-paid", "--to", f"{orders}-out",
        "--schema", f"orders={ORDERS}", "--format", "paid=text", "--watermark", "10 minutes",
        "--deduplicate", "orders=payload.id",
        "--sql", "SELECT o.payload.id FROM orders o JOIN paid p ON CAST(p.value AS LONG) = o.payload.id"
        " AND p.event_time BETWEEN o.event_time AND o.event_time + INTERVAL 5 MINUTES",
    )  # fmt: skip
    assert values(broker, f"{orders}-out") == ['{"id":1}', '{"id":3}']


def test_records_are_passed_on_as_they_are(broker: Broker, orders: str, tmp_path: Path) -> None:
    sent = Sent(value=b"\xff", key=b"k", headers=(("a", None),), timestamp_ms=BASE_TIME_MS + 5)
    produce(broker, orders, [sent, Sent(value=None, key=b"gone")])
    transform(
        broker, tmp_path, "--source", f"raw={orders}", "--to", f"{orders}-out", "--sql", "SELECT * FROM raw"
    )  # fmt: skip
    first, second = committed(broker, f"{orders}-out")
    assert (first.key(), first.value(), first.headers()) == (b"k", b"\xff", [("a", None)])
    assert (first.timestamp()[1], second.value()) == (BASE_TIME_MS + 5, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sql", "SELECT nothing FROM orders"), "steps.result: .*nothing"),
        (("--sql", "SELECT 1 AS value, 2 AS other FROM orders"), "has the columns value and other"),
        (("--sql", "SELECT * FROM orders", "--function", "a:b"), "either sql or function"),
        (("--function", "no_such_module:f"), "function no_such_module:f is not found"),
        (("--sql", "SELECT * FROM orders", "--schema", "nonsense here is"), "is not a list of columns"),
        (("--sql", "SELECT * FROM orders", "--deduplicate", "key"), "deduplicate needs a watermark"),
        (("--sql", "SELECT * FROM orders", "--format", "xml"), "Invalid enum value 'xml'"),
        (("--sql", "SELECT 1 AS value"), "reads no topic"),
        (("--sql", "SELECT * FROM orders", "--dead-letters", "no-such-topic"), "unknown topic 'no-such-topic'"),
        (("--sql", "SELECT count(*) AS n FROM orders"), "sinks.output: .*watermark"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    broker: Broker, orders: str, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ClientError, match=message) as raised:
        transform(broker, tmp_path, "--source", f"orders={orders}", "--to", f"{orders}-out", *arguments)
    assert "\n" not in str(raised.value)


def test_a_topic_that_begins_with_a_digit_needs_a_view(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"--source 2024\.a: .*: give --source VIEW=2024\.a"):
        transform(broker, tmp_path, "--source", "2024.a", "--to", "out", "--sql", "SELECT 1")
