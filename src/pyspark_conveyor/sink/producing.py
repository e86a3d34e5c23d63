"""A task's producer: it produces rows and knows whether all of them were acknowledged."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pyspark_conveyor.brokers.token_file import confluent_options
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.sink.outgoing_rows import OutgoingRow, outgoing_rows
from pyspark_conveyor.sink.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

_FLUSH_S = 300.0
_ROOM_S = 0.1
_DEFAULTS = {
    # The partitions that Java's clients and Spark's own connector choose for a key.
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 128 << 10,
    "delivery.report.only.error": True,
    "log_level": 0,
}


class RowProducer:
    """Produces rows. transactional_id: all of them in one transaction, which its user begins and ends.

    row_count, checksum: of the rows so far; the checksum does not depend on their order.
    """

    def __init__(self, options: SinkOptions, transactional_id: str | None = None) -> None:
        from confluent_kafka import KafkaException, Producer

        settings: dict[str, Any] = {
            **_DEFAULTS,
            **confluent_options(options.client),
            "bootstrap.servers": options.bootstrap_servers,
            "enable.idempotence": True,
            "on_delivery": self._note,
        }
        if transactional_id is not None:
            settings |= {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": options.transaction_timeout_ms,
            }
        try:
            self.client = Producer(settings)
        except KafkaException as error:
            raise PipelineError(f"the Kafka client refuses its options: {error.args[0].str()}") from error
        self._topic = options.topic
        self._failure: str | None = None
        self.row_count = 0
        self.checksum = 0

    def produce_all(self, batches: Iterator["pa.RecordBatch"]) -> None:
        """Produce all rows and wait until they are acknowledged. Raises PipelineError."""
        for batch in batches:
            for row in outgoing_rows(batch):
                self._produce(row)
            with self._explained_errors():
                self.client.poll(0)
            self._check()
        with self._explained_errors():
            left = self.client.flush(_FLUSH_S)
        if left:
            raise PipelineError(f"{left} records were not acknowledged within {_FLUSH_S:.0f} seconds")
        self._check()

    def count_all(self, batches: Iterator["pa.RecordBatch"]) -> None:
        """Count rows without producing them."""
        for batch in batches:
            for row in outgoing_rows(batch):
                self._count(row)

    def _produce(self, row: OutgoingRow) -> None:
        from confluent_kafka import KafkaError, KafkaException

        topic = self._topic or row.topic
        if topic is None:
            raise PipelineError("a row has no topic: set option 'topic', or fill the column 'topic'")
        while True:
            try:
                self.client.produce(
                    topic,
                    row.value,
                    row.key,
                    row.partition,
                    timestamp=row.timestamp_ms,
                    headers=row.headers,
                )
                break
            except BufferError:
                with self._explained_errors():
                    self.client.poll(_ROOM_S)
                self._check()
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:  # noqa: SLF001 - Earlier records have failed: they say why.
                    with self._explained_errors():
                        self.client.poll(_ROOM_S)
                    self._check()
                raise PipelineError(f"records were refused: topic '{topic}': {explained(error.args[0])}") from error
            except OverflowError as error:
                raise PipelineError(f"column 'partition' has {row.partition}: no topic has such a partition") from error
        self._count(row)

    def _count(self, row: OutgoingRow) -> None:
        self.row_count += 1
        self.checksum += crc32(_bytes(row.key), crc32(_bytes(row.value)))

    def _note(self, error: Any, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = f"topic '{message.topic()}': {explained(error)}"

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Turn the client's fatal errors into PipelineError.

        The client raises them while it calls back, which Python reports; or loses them to the next callback, which then
        reports the same error.
        """
        from confluent_kafka import KafkaException

        try:
            yield
        except (KafkaException, SystemError) as error:
            fatal = error.__cause__ if isinstance(error, SystemError) else error
            if not isinstance(fatal, KafkaException):
                self._check()
                raise
            raise PipelineError(f"records were refused: {explained(fatal.args[0])}") from error

    def _check(self) -> None:
        if self._failure is not None:
            raise PipelineError(f"records were refused: {self._failure}")


def explained(error: Any) -> str:
    """Return what the client says of an error, and why a producer may be fenced."""
    from confluent_kafka import KafkaError

    fenced = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)  # noqa: SLF001
    why = ": another run of the query has taken over, or it took longer than transactionTimeoutMs"
    return f"{error.str()}{why if error.code() in fenced else ''}"


def _bytes(field: bytes | str | None) -> bytes:
    if field is None:
        return b"\0"
    return field.encode() if isinstance(field, str) else field
