"""One broker in memory, whose time stands still, for all tests of a module; each has queues of its own."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import boto3
import pytest
from botocore.config import Config

from conveyor.testing import Broker
from tests.clients.rest_client import HasHttp


def connect(broker: HasHttp, **options: Any) -> Any:
    """Return boto3's client of SQS. It checks the digests of all messages."""
    return boto3.client(
        "sqs",
        endpoint_url=broker.http_url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=Config(retries={"total_max_attempts": 1}, **options),
    )


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(memory=True, manual_clock=True) as running:
        yield running


@pytest.fixture(scope="module")
def sqs(broker: Broker) -> Iterator[Any]:
    client = connect(broker)
    yield client
    client.close()


@pytest.fixture
def make_queue(sqs: Any) -> Callable[..., str]:
    """Creates a queue with a name of its own, and returns its URL."""

    def make(suffix: str = "", **attributes: str) -> str:
        name = f"queue-{uuid4().hex[:8]}{suffix}"
        url: str = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    return make


@pytest.fixture
def queue(make_queue: Callable[..., str]) -> str:
    """The URL of a standard queue."""
    return make_queue()
