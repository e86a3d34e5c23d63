"""How a job's command ends: interrupts while Spark starts, and failures in one line."""

import os
import signal

import pytest

from conveyor.cli.pipeline.job_run import _late_interrupt, job_errors
from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.testing import Broker
from pyspark_conveyor.brokers.raw_client import ConnectionFailedError
from pyspark_conveyor.pipeline_errors import PipelineError


def start(steps: list[str], interrupts: int) -> None:
    """Start something that is interrupted, and note that it has started."""
    with _late_interrupt():
        for _ in range(interrupts):
            os.kill(os.getpid(), signal.SIGINT)
        steps.append("started")


@pytest.mark.parametrize(("interrupts", "expected"), [(1, ["started"]), (2, [])])
def test_first_interrupt_waits_and_the_second_does_not(
    interrupts: int, expected: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        start(steps, interrupts)
    assert signal.getsignal(signal.SIGINT) is before
    assert steps == expected
    assert capfd.readouterr().err.count("Spark is starting") == 1


def test_handler_that_spark_installs_is_undone() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _late_interrupt():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is before


def test_errors_of_a_job_are_one_line(memory_broker: Broker) -> None:
    from pyspark.errors import PySparkValueError

    http = memory_broker.http_url.removeprefix("http://")
    report = "[X] Failed: pyspark_conveyor.pipeline_errors.PipelineError: unknown topic 't'\n SQLSTATE: 38000"
    for error, message in (
        (PipelineError("a reason"), "a reason"),
        (ConnectionFailedError("127.0.0.1:1"), "no broker answers at 127.0.0.1:1: start one"),
        (ConnectionFailedError(http), f"{http} answers HTTP requests: give the Kafka address"),
        (PySparkValueError(report), "unknown topic 't'"),
    ):
        with pytest.raises(ClientError) as raised, job_errors():
            raise error
        assert str(raised.value).startswith(message)
        assert "\n" not in str(raised.value)
    with pytest.raises(ZeroDivisionError), job_errors():
        print(1 / 0)
