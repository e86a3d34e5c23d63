"""The writers that Spark calls for a table or a stream."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.plain_errors import with_plain_errors
from pyspark_conveyor.sink.exactly_once import WriteOwner, write_in_transaction
from pyspark_conveyor.sink.producing import RowProducer
from pyspark_conveyor.sink.sink_options import DeliveryGuarantee, SinkOptions
from pyspark_conveyor.sink.task_transaction import TaskTransaction, abort_transaction, commit_transaction

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class TaskWritten(WriterCommitMessage):
    """The writes of a task that the driver has to commit, if any."""

    transaction: TaskTransaction | None = None


@with_plain_errors
class BatchWriter(DataSourceArrowWriter):
    """Writes a table."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> TaskWritten:
        options = self._options
        if options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
            return _write_plainly(options, iterator)
        owner = WriteOwner(f"job.{options.job_id}")
        task = _task().partitionId()
        return TaskWritten(write_in_transaction(options, owner, task, options.batch_number, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


@with_plain_errors
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> TaskWritten:
        options = self._options
        if options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
            return _write_plainly(options, iterator)
        task = _task()
        query, number = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if query is None or number is None:
            raise PipelineError(
                "this Spark does not tell tasks the number of their batch, which delivery=exactly-once needs:"
                " use the version of Spark that conveyor[spark] installs"
            )
        if options.stream_id is None:
            owner = WriteOwner(query)
        else:
            owner = WriteOwner(f"stream.{options.stream_id}", checkpoint=query)
        return TaskWritten(write_in_transaction(options, owner, task.partitionId(), int(number), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _commit(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _abort(self._options, messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task


def _write_plainly(options: SinkOptions, batches: Iterator["pa.RecordBatch"]) -> TaskWritten:
    RowProducer(options).produce_all(batches)
    return TaskWritten()


def _commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit what the tasks have left, one after the other. A batch that is interrupted here is repeated, and the tasks
    that were committed are recognized.
    """
    transactions = _transactions(messages)
    if transactions:
        # Always a new connection: brokers refuse the end of a transaction on one that is older than the task's, because
        # the request may have been meant for an earlier transaction (KAFKA-17754).
        with closing(RawClient(options.bootstrap_servers, options.security)) as client:
            for transaction in transactions:
                commit_transaction(client, transaction)


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    transactions = _transactions(messages)
    if transactions:
        with closing(RawClient(options.bootstrap_servers, options.security)) as client:
            for transaction in transactions:
                abort_transaction(client, transaction)


def _transactions(messages: Sequence[WriterCommitMessage | None]) -> list[TaskTransaction]:
    return [each.transaction for each in messages if isinstance(each, TaskWritten) and each.transaction is not None]
