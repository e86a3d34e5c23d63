"""Transaction markers: the control batches that end a producer's transaction in one partition.

A marker is a batch of one record, with attributes 0x30 (control, transactional) and no sequence (-1):

    key    version int16 (0) | type int16: 0 abort, 1 commit
    value  version int16 (0) | coordinator epoch int32

Source: KIP-98; Kafka's EndTransactionMarker and ControlRecordType.
"""

from struct import Struct

import msgspec

from conveyor.kernel.ids import NO_SEQUENCE
from conveyor.kernel.ports import Bytes
from conveyor.records.batch import CONTROL, TRANSACTIONAL, BatchHeader
from conveyor.records.record import UnreadableBatch, decode_records, encode_batch

MARKER = CONTROL | TRANSACTIONAL
_VERSION = 0
_ABORT, _COMMIT = 0, 1
_KEY = Struct(">hh")
_VALUE = Struct(">hi")


class TransactionMarker(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a transaction: its producer, its outcome, and the epoch of the coordinator that decided it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commits: bool


def is_marker(header: BatchHeader) -> bool:
    """Return whether a batch is a transaction marker. Other control batches are not transactional."""
    return header.attributes & MARKER == MARKER


def encode_marker(marker: TransactionMarker, now_ms: int) -> bytes:
    """Return the marker's batch, with base offset 0."""
    key = _KEY.pack(_VERSION, _COMMIT if marker.commits else _ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return encode_batch(
        [(now_ms, key, value, ())],
        attributes=MARKER,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        base_sequence=NO_SEQUENCE,
    )


def decode_marker(header: BatchHeader, batch: Bytes) -> TransactionMarker | None:
    """Return the marker in a batch; None if its records cannot be read as one.

    Later versions may append fields, so longer keys and values are accepted.
    """
    try:
        records = list(decode_records(batch)) if header.records_count == 1 else []
    except UnreadableBatch:
        return None
    for record in records:
        if record.key is None or len(record.key) < _KEY.size or record.value is None or len(record.value) < _VALUE.size:
            return None
        (_, outcome), (_, coordinator_epoch) = _KEY.unpack_from(record.key), _VALUE.unpack_from(record.value)
        if outcome in (_ABORT, _COMMIT):
            return TransactionMarker(
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                coordinator_epoch=coordinator_epoch,
                commits=outcome == _COMMIT,
            )
    return None
