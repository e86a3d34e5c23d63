"""A subscription as a stream.

A stream offset names its subscription and the messages of its batch, with their leases: `{"subscription": "billing",
"batch": 3, "messages": [[partition, offset, ack id], ...]}`. So a batch that is repeated after a crash reads the same
records from the log, whatever has become of the leases. Spark asks for the next offset once it has committed the batch
before. That is when its messages are settled.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.plain_errors import with_plain_errors
from pyspark_conveyor.source.offset_ranges import OffsetRange, read_range
from pyspark_conveyor.subscriptions.subscription_client import MessageLease, SubscriptionClient
from pyspark_conveyor.subscriptions.subscription_options import SubscriptionOptions

if TYPE_CHECKING:
    import pyarrow as pa

_LARGEST_GAP = 1_000
"""Messages that are further apart are read in ranges of their own."""

LeaseOffset = dict[str, Any]


@dataclass(frozen=True)
class LeasedRange(InputPartition):
    """Some messages of one partition: a range of offsets, and which of it are leased."""

    whole: OffsetRange
    offsets: tuple[int, ...]


@with_plain_errors
class SubscriptionReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Leases, reads and settles. The driver's reader has a thread that extends the leases of the present batch."""

    def __init__(self, options: SubscriptionOptions) -> None:
        self._options = options
        self._left: int | None = None
        self._settled = 0
        self._keeper: _LeaseKeeper | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_keeper": None}

    def initialOffset(self) -> LeaseOffset:  # noqa: N802 - Spark's name
        self._client().topic()
        return self._offset(0, [])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._left = self._client().depth()

    def latestOffset(self, start: LeaseOffset, limit: ReadLimit) -> LeaseOffset:  # noqa: N802 - Spark's name
        self._check_own(start)
        client = self._client()
        self._settle(client, start)
        most = self._options.max_messages if isinstance(limit, ReadAllAvailable) else limit.max_rows  # type: ignore[attr-defined]
        if self._left is not None:
            most = min(most, self._left)
        leased = client.lease(most, self._options.visibility)
        if not leased:
            return start
        if self._left is not None:
            self._left -= len(leased)
        self._keeper = _LeaseKeeper(client, [each.ack_id for each in leased], self._options)
        return self._offset(start["batch"] + 1, leased)

    def partitions(self, start: LeaseOffset, end: LeaseOffset) -> list[LeasedRange]:
        self._check_own(end)
        by_partition: dict[int, list[int]] = defaultdict(list)
        for message in _messages(end):
            by_partition[message.partition].append(message.offset)
        topic = self._client().topic()
        return [
            LeasedRange(OffsetRange(topic, partition, near[0], near[-1] + 1), tuple(near))
            for partition, offsets in sorted(by_partition.items())
            for near in _near(sorted(offsets))
        ]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if not isinstance(partition, LeasedRange):
            return  # Spark passes a placeholder partition when there is nothing to read.
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = pa.array(partition.offsets, pa.int64())
        for batch in read_range(self._options.source, partition.whole):
            yield batch.filter(pc.is_in(batch.column("offset"), value_set=wanted))

    def commit(self, end: LeaseOffset) -> None:
        """Nothing to do: Spark does not call this for the last batch."""

    def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()

    def _settle(self, client: SubscriptionClient, done: LeaseOffset) -> None:
        """Settle the messages of a committed batch, once."""
        if done["batch"] == self._settled:
            return
        if self._keeper is not None:
            self._keeper.stop()
        client.acknowledge([message.ack_id for message in _messages(done)])
        self._settled = done["batch"]

    def _offset(self, batch: int, leased: Sequence[MessageLease]) -> LeaseOffset:
        messages = [list(each) for each in leased]
        return {"subscription": self._options.subscription, "batch": batch, "messages": messages}

    def _check_own(self, offset: LeaseOffset) -> None:
        """Raise PipelineError for the offset of another source. Early checkpoints do not name their subscription."""
        if (
            "messages" not in offset
            or offset.get("subscription", self._options.subscription) != self._options.subscription
        ):
            raise PipelineError(
                f"the checkpoint does not hold messages of subscription '{self._options.subscription}':"
                " choose another checkpointLocation"
            )

    def _client(self) -> SubscriptionClient:
        return SubscriptionClient(self._options.address, self._options.subscription, self._options.token)


class _LeaseKeeper:
    """Extends leases three times in each of their lengths, until it is stopped."""

    def __init__(self, client: SubscriptionClient, ack_ids: list[str], options: SubscriptionOptions) -> None:
        self._client, self._ack_ids, self._options = client, ack_ids, options
        self._is_over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(self._options.visibility_s / 3):
            try:
                self._client.extend(self._ack_ids, self._options.visibility)
            except PipelineError:
                continue  # It is tried again; a lease that ends meanwhile makes its message be delivered again.


def _messages(offset: Mapping[str, Any]) -> list[MessageLease]:
    return [MessageLease(*each) for each in offset["messages"]]


def _near(offsets: list[int]) -> Iterator[list[int]]:
    """Divide rising offsets where there are large gaps."""
    part = offsets[:1]
    for offset in offsets[1:]:
        if offset - part[-1] > _LARGEST_GAP:
            yield part
            part = []
        part.append(offset)
    yield part
