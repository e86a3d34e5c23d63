"""A producer with two-phase commit (KIP-939): five requests of the Kafka protocol.

No client library for Python has this yet: they abort the transaction that they find when they start. This producer
keeps it, asks its caller for the verdict, and commits or aborts it. It sends each record on its own and waits for the
answer.
"""

import io
import socket
import struct
import time
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple

from kio.index import load_response_schema
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.init_producer_id.v6.request import InitProducerIdRequest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.produce.v12.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.request_header.v2.header import RequestHeader
from kio.serial import entity_reader, entity_writer

from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.record import encode_batch

PATIENCE_S = 60
PAUSE_S = 0.1
TIMEOUT = timedelta(seconds=30)


class Identity(NamedTuple):
    """A producer, and by its epoch one of its transactions: each transaction raises the epoch."""

    producer_id: int
    epoch: int


class TwoPhaseProducer:
    """Writes to partition 0 of topics. Every method raises ConnectionError if there is no answer for a minute."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        host, _, port = bootstrap.partition(",")[0].rpartition(":")
        self._bootstrap = (host, int(port))
        self._transactional_id = transactional_id
        self._identity = Identity(-1, -1)
        self._sequences: dict[str, int] = {}

    def take_over(self) -> Identity | None:
        """Fence earlier processes, and keep the transaction that they have left. Returns its name, if there is one: it
        must be ended before anything is sent.
        """
        answer = self._ask_coordinator(
            InitProducerIdRequest(
                transactional_id=self._transactional_id,  # type: ignore[arg-type]
                transaction_timeout=TIMEOUT,  # type: ignore[arg-type]
                enable2_pc=True,
                keep_prepared_txn=True,
            )
        )
        self._identity = Identity(answer.producer_id, answer.producer_epoch)
        left = Identity(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)
        return None if left == (-1, -1) else left

    def send(self, topic: str, value: bytes) -> None:
        """Write a record in the transaction, which the first one begins."""
        sequence = self._sequences.get(topic, 0)
        records = [(int(time.time() * 1000), None, value, ())]
        producer_id, epoch = self._identity
        batch = encode_batch(
            records, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        partition = PartitionProduceData(index=0, records=batch)  # type: ignore[arg-type]
        request = ProduceRequest(
            transactional_id=self._transactional_id,  # type: ignore[arg-type]
            acks=-1,  # type: ignore[arg-type]
            timeout=TIMEOUT,  # type: ignore[arg-type]
            topic_data=(TopicProduceData(name=topic, partition_data=(partition,)),),  # type: ignore[arg-type]
        )
        for pause in _pauses():
            answer = _ask(self._leader(topic), request)
            if answer is not None and not _is_to_be_repeated(answer.responses[0].partition_responses[0].error_code):
                break
            pause()
        self._sequences[topic] = sequence + 1

    def prepare(self) -> Identity:
        """Return the name of the transaction. The database stores it in the commit that decides: it is the verdict."""
        return self._identity

    def end(self, *, commit: bool) -> None:
        """Commit or abort the transaction, as the database has decided."""
        producer_id, epoch = self._identity
        answer = self._ask_coordinator(
            EndTxnRequest(
                transactional_id=self._transactional_id,  # type: ignore[arg-type]
                producer_id=producer_id,  # type: ignore[arg-type]
                producer_epoch=epoch,  # type: ignore[arg-type]
                committed=commit,
            )
        )
        self._identity, self._sequences = Identity(answer.producer_id, answer.producer_epoch), {}

    def _ask_coordinator(self, request: Any) -> Any:
        """Repeat a request until the coordinator has carried it out. Each of them may be repeated."""
        for pause in _pauses():
            answer = _ask(self._coordinator(), request)
            if answer is not None and not _is_to_be_repeated(answer.error_code):
                return answer
            pause()
        raise AssertionError

    def _coordinator(self) -> tuple[str, int] | None:
        keys = (self._transactional_id,)
        answer = _ask(self._bootstrap, FindCoordinatorRequest(key_type=1, coordinator_keys=keys))  # type: ignore[arg-type]
        found = None if answer is None else answer.coordinators[0]
        return None if found is None or found.error_code is not ErrorCode.none else (found.host, found.port)

    def _leader(self, topic: str) -> tuple[str, int] | None:
        topics = (MetadataRequestTopic(topic_id=None, name=topic),)  # type: ignore[arg-type]
        request = MetadataRequest(topics=topics, include_topic_authorized_operations=False)
        answer = _ask(self._bootstrap, request)
        if answer is None or not answer.topics[0].partitions:
            return None
        leader = answer.topics[0].partitions[0].leader_id
        return next(((broker.host, broker.port) for broker in answer.brokers if broker.node_id == leader), None)


def _pauses() -> Any:
    """Yield a function that waits before the next attempt, and raises ConnectionError when the time is over."""
    ends = time.monotonic() + PATIENCE_S

    def pause() -> None:
        if time.monotonic() > ends:
            raise ConnectionError(f"no broker has carried out the request for {PATIENCE_S} s")
        time.sleep(PAUSE_S)

    for _ in count():
        yield pause


def _is_to_be_repeated(error: ErrorCode) -> bool:
    """Raise RuntimeError if it makes no sense to repeat the request."""
    if error is not ErrorCode.none and not error.retriable:
        raise RuntimeError(f"the broker has refused a request: {error.name}")
    return error is not ErrorCode.none


def _ask(address: tuple[str, int] | None, request: Any) -> Any:
    """Return the response of a broker, or None if it cannot be reached."""
    if address is None:
        return None
    frame = io.BytesIO()
    header = RequestHeader(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=1,  # type: ignore[arg-type]
        client_id="bank",
    )
    entity_writer(RequestHeader)(frame, header)
    entity_writer(type(request))(frame, request)
    try:
        with socket.create_connection(address, timeout=TIMEOUT.total_seconds()) as connection:
            connection.sendall(struct.pack(">i", len(frame.getvalue())) + frame.getvalue())
            response = connection.makefile("rb")
            (size,) = struct.unpack(">i", response.read(4))
            content = response.read(size)
    except (OSError, struct.error):
        return None
    schema = load_response_schema(request.__api_key__, request.__version__)
    _, header_size = entity_reader(schema.__header_schema__)(content, 0)
    answer, _ = entity_reader(schema)(content, header_size)
    return answer
