"""Records with very many headers: small on the wire, and slow to decode and show."""

from conveyor.log.record_source import SMALL_BYTES
from conveyor.records.message import Message
from conveyor.records.record import MAX_HEADERS
from tests.unit.queues.stage import Stage, header, subscription


def test_record_of_too_many_headers_is_no_message() -> None:
    stage = Stage(subscription())
    stage.publish((None, b"1", [("", b"")] * (MAX_HEADERS + 1)))
    stage.publish((None, b"2", [("", b"")] * MAX_HEADERS))
    assert stage.lease_offsets() == [1]


def test_headers_count_against_what_one_lease_may_bring() -> None:
    many = [("", b"")] * 1_000
    message = Message("t", 0, 0, 0, None, b"value", tuple(many))
    assert message.weight_bytes > 1_000 * 100
    stage = Stage(subscription())
    stage.publish(*[(None, b"value", many) for _ in range(20)])
    assert len(stage.lease(20, max_bytes=2 * message.weight_bytes)) < 20


def test_marked_batch_of_large_records_is_looked_at_part_by_part() -> None:
    stage = Stage(subscription())
    large = bytes(SMALL_BYTES // 2)
    stage.publish(*[(None, large, [header("delay-ms", 0)]) for _ in range(20)])
    assert stage.lease_offsets(20) == list(range(20))
