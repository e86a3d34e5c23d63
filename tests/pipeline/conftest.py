"""One Spark and one broker for all pipeline tests; each test has topics of its own."""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from conveyor.testing import Broker
from pyspark_conveyor.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    with pytest.MonkeyPatch.context() as patch:
        # Java's second compiler works for long runs: without it these short ones take half of the processor time.
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        session = spark_session("conveyor tests", "local[2]")
        yield session
        session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"
