"""The example of docs/security.md reads `__audit` with Spark, by the schema that the page gives."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException

from conveyor.broker.clients.audit_event import AuditEvent
from conveyor.testing import Broker
from tests.pipeline.topics import create_topic, delete_topic

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
SETTINGS = {"access.enabled": True, "access.super_users": "User:ANONYMOUS"}


def wait_for(broker: Broker, text: bytes, count: int) -> None:
    """Wait until so many events have a text in them."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(config)
    consumer.subscribe(["__audit"])
    while count:
        message = consumer.poll(10)
        count -= message is not None and message.error() is None and text in (message.value() or b"")
    consumer.close()


@pytest.mark.usefixtures("spark")
def test_the_example_of_the_page_reads_the_audit() -> None:
    with Broker(memory=True, settings=SETTINGS) as broker:
        create_topic(broker, "orders")
        delete_topic(broker, "orders")
        with pytest.raises(KafkaException):
            delete_topic(broker, "orders")
        wait_for(broker, b'"DeleteTopics"', 2)
        [example] = re.findall(r"^```python\n(.*?from_json.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        names: dict[str, object] = {}
        printed = StringIO()
        with redirect_stdout(printed):
            exec(example.replace("127.0.0.1:9092", broker.bootstrap_servers), names)
        events = names["events"]
        assert [name for name, _ in events.dtypes] == list(AuditEvent.__struct_fields__)  # type: ignore[attr-defined]
        rows = events.where("request IN ('CreateTopics', 'DeleteTopics')").collect()  # type: ignore[attr-defined]
    shown = [(row.principal, row.operation, row.resource, row.allowed, row["count"], row.broker) for row in rows]
    assert shown == [
        ("User:ANONYMOUS", operation, "orders", True, 1, 1) for operation in ("Create", "Delete", "Delete")
    ]
    assert None not in {value for row in rows for value in row}
