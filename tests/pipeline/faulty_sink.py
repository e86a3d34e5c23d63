"""The sink, with a kill at a chosen step of a batch: once, at its second batch, in its first task.

Steps of a task, whose Python worker is killed: before or after "init_transactions", "read_marker", "producer_identity",
"produce_all" and "add_marker". Steps of the driver, whose JVM is killed: "before commit", "between commits", "after
commit". With the option `victim`, a pid, that process is killed instead, such as a broker; with EXECUTOR,
the JVM that runs the task.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import psutil
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_conveyor.sink import exactly_once, table_writers, task_transaction
from pyspark_conveyor.sink.producing import RowProducer
from pyspark_conveyor.sink.sink_options import SinkOptions, parse_sink_options
from pyspark_conveyor.sink.table_writers import StreamWriter, TaskWritten
from pyspark_conveyor.spark.spark_source import ConveyorDataSource

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 1
EXECUTOR = -1
TASK_STEPS = [
    f"{when} {step}"
    for step in ("init_transactions", "read_marker", "producer_identity", "produce_all", "add_marker")
    for when in ("before", "after")
]
DRIVER_STEPS = ["before commit", "between commits", "after commit"]


class FaultySink(ConveyorDataSource):
    """`format("faulty")`: options `step`, `latch` (a file that says that the fault has happened) and `victim`."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        own = ("step", "latch", "victim")
        options = parse_sink_options(
            {name: value for name, value in self.options.items() if name not in own}, streaming=True
        )
        return FaultyWriter(options, self.options["step"], self.options["latch"], int(self.options.get("victim", 0)))


class FaultyWriter(StreamWriter):
    def __init__(self, options: SinkOptions, step: str, latch: str, victim: int) -> None:
        super().__init__(options)
        self._step, self._latch, self._victim = step, latch, victim

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> TaskWritten:
        task = TaskContext.get()
        assert task is not None
        is_chosen = (task.getLocalProperty("streaming.sql.batchId"), task.partitionId()) == (str(BATCH), 0)
        when, _, step = self._step.partition(" ")
        places: dict[str, tuple[object, str]] = {
            "init_transactions": (exactly_once, "_call"),
            "read_marker": (exactly_once, "read_marker"),
            "producer_identity": (exactly_once, "producer_identity"),
            "produce_all": (RowProducer, "produce_all"),
            "add_marker": (exactly_once, "_add_marker"),
        }
        with ExitStack() as patches:
            if is_chosen and step in places:
                place, name = places[step]
                patches.enter_context(patch.object(place, name, self._around(when, getattr(place, name))))
            return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if batchId != BATCH or self._step not in DRIVER_STEPS:
            return super().commit(messages, batchId)
        if self._step == "before commit":
            self._fail()
        first = True

        def commit_transaction(*arguments: Any) -> None:
            nonlocal first
            if self._step == "between commits" and not first:
                self._fail()
            first = False
            original(*arguments)

        original = task_transaction.commit_transaction
        with patch.object(table_writers, "commit_transaction", commit_transaction):
            super().commit(messages, batchId)
        if self._step == "after commit":
            self._fail()

    def _around(self, when: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            if when == "before":
                self._fail()
            result = step(*arguments)
            if when == "after":
                self._fail()
            return result

        return run

    def _fail(self) -> None:
        """Kill the victim, unless it was done before."""
        try:
            Path(self._latch).touch(exist_ok=False)
        except FileExistsError:
            return
        victim = self._victim or (EXECUTOR if self._step in DRIVER_STEPS else os.getpid())
        victim = _java() if victim == EXECUTOR else victim
        os.kill(victim, signal.SIGKILL)


def _java() -> int:
    return next(parent.pid for parent in psutil.Process().parents() if parent.name() == "java")
