"""Transactions that a task leaves open and the driver ends.

librdkafka ends only its own transactions, and does not tell its producer id and epoch. So they are looked up before the
first record, and the end is sent as a request of its own.
"""

import time
from dataclasses import dataclass
from typing import Any

from pyspark_conveyor.brokers.error_codes import COORDINATOR_MOVED, ErrorCode, error_name
from pyspark_conveyor.brokers.raw_client import GROUP, TRANSACTION, ConnectionFailedError, RawClient
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.sink.write_marker import WriteMarker, parse_marker

_PATIENCE_S = 60.0
_RETRY_S = 0.05
_PASSING = COORDINATOR_MOVED | {ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.CONCURRENT_TRANSACTIONS}
_LAST_CLASSIC_END = 4
"""From version 5 on, EndTxn raises the producer's epoch. The task's client does not expect it."""
_MARKER_PARTITION = 0


@dataclass(frozen=True)
class TaskTransaction:
    """A transaction that waits for its end. marker_topic: where its marker is; number: of its batch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    marker_topic: str
    number: int


def producer_identity(client: RawClient, transactional_id: str) -> tuple[int, int]:
    """Return the producer id and epoch of a transactional id that was just initialized. Raises PipelineError."""
    from kafka.protocol.admin.transactions import DescribeTransactionsRequest

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def ask() -> tuple[int, Any]:
        response = client.ask(request, client.coordinator(transactional_id, TRANSACTION))
        return response.transaction_states[0].error_code, response.transaction_states[0]

    state = _insist(client, ask, f"transaction '{transactional_id}'")
    return state.producer_id, state.producer_epoch


def read_marker(client: RawClient, group: str, topic: str, *, waits: bool = True) -> WriteMarker:
    """Return the marker that a group's committed offset holds. Raises PipelineError.

    waits: whether to wait for the end of an open transaction that may replace it.
    """
    from kafka.protocol.consumer import OffsetFetchRequest

    wanted = OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[_MARKER_PARTITION])
    request = OffsetFetchRequest(group_id=group, topics=[wanted], require_stable=waits, max_version=7)

    def ask() -> tuple[int, Any]:
        response = client.ask(request, client.coordinator(group, GROUP))
        partition = response.topics[0].partitions[0] if response.topics else None
        return response.error_code or (partition.error_code if partition else 0), partition

    partition = _insist(client, ask, f"group '{group}'")
    return parse_marker(-1, "") if partition is None else parse_marker(partition.committed_offset, partition.metadata)


def commit_transaction(client: RawClient, transaction: TaskTransaction) -> None:
    """Commit it, or find it committed. Raises PipelineError if it was aborted or fenced."""
    code = _end(client, transaction, commits=True)
    if code == 0:
        return
    # The open transaction of another run does not matter here.
    marker = read_marker(client, transaction.transactional_id, transaction.marker_topic, waits=False)
    if marker.next_number <= transaction.number:
        raise PipelineError(
            f"the transaction '{transaction.transactional_id}' of batch {transaction.number} cannot be committed"
            f" ({error_name(code)}): another run of the query has taken over, or it took longer than"
            " transactionTimeoutMs"
        )


def abort_transaction(client: RawClient, transaction: TaskTransaction) -> None:
    """Abort it if it is still open. Its end by others is fine: what counts is that it does not stay open."""
    _end(client, transaction, commits=False)


def _end(client: RawClient, transaction: TaskTransaction, *, commits: bool) -> int:
    """Ask for the end, and return the error code of the answer. Raises PipelineError."""
    from kafka.protocol.producer import EndTxnRequest

    request = EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        committed=commits,
        max_version=_LAST_CLASSIC_END,
    )
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            node = client.coordinator(transaction.transactional_id, TRANSACTION)
            code = int(client.ask(request, node).error_code)
        except ConnectionFailedError:
            client.forget_leaders()
            if time.monotonic() > deadline:
                raise
            continue
        if code not in _PASSING or time.monotonic() > deadline:
            return code
        client.forget_leaders()
        time.sleep(_RETRY_S)


def _insist(client: RawClient, ask: Any, about: str) -> Any:
    """Repeat a question while its answer says so. Raises PipelineError."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            code, answer = ask()
        except ConnectionFailedError:
            code, answer = ErrorCode.COORDINATOR_NOT_AVAILABLE, None
            if time.monotonic() > deadline:
                raise
        if code == 0:
            return answer
        if code not in _PASSING or time.monotonic() > deadline:
            raise PipelineError(f"{about}: {error_name(code)}")
        client.forget_leaders()
        time.sleep(_RETRY_S)
