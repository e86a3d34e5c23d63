"""The marker of an exactly-once write."""

import pytest

from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.sink.write_marker import WriteMarker, WrittenBatch, parse_marker


def marker(*numbers: int) -> WriteMarker:
    found = WriteMarker()
    for number in numbers:
        found = found.with_batch(WrittenBatch(number, 10 * number, 1000 + number))
    return found


def test_a_marker_is_what_it_was_written_as() -> None:
    written = marker(3, 4, 7)
    assert written.next_number == 8
    assert parse_marker(8, written.to_metadata() + "\0") == written
    assert parse_marker(-1, "") == WriteMarker()


@pytest.mark.parametrize("metadata", ["", "x", "7:1", "6:1:ff", "7:1:zz"])
def test_an_offset_without_its_marker_is_refused(metadata: str) -> None:
    with pytest.raises(PipelineError, match="the sink's committed offset 8 is not its marker"):
        parse_marker(8, metadata)


def test_a_repeated_batch_is_recognized_by_its_rows() -> None:
    written = marker(3, 4)
    assert [written.is_written(number) for number in (3, 4, 5)] == [True, True, False]
    written.check(WrittenBatch(4, 40, 1004))
    for changed in (WrittenBatch(4, 41, 1004), WrittenBatch(4, 40, 5), WrittenBatch(2, 1, 1)):
        with pytest.raises(PipelineError, match="was written before with"):
            written.check(changed)


def test_a_batch_older_than_the_marker_remembers_is_refused() -> None:
    written = marker(*range(100))
    assert len(written.batches) == 64
    assert written.is_written(40)
    with pytest.raises(PipelineError, match="batch 20 is to be written, but batch 99 was written before"):
        written.is_written(20)


def test_a_full_marker_fits_into_an_offsets_metadata() -> None:
    full = WriteMarker()
    for number in range(10**9, 10**9 + 100):
        full = full.with_batch(WrittenBatch(number, 10**9, (1 << 62) - number), "0" * 36)
    assert len(full.to_metadata()) < 4096


def test_a_marker_names_the_checkpoint_of_a_stream_with_an_id() -> None:
    written = marker(3).with_batch(WrittenBatch(4, 0, 0), "a-query")
    assert written.to_metadata() == "a-query;4:0:0,3:30:3eb"
    assert parse_marker(5, written.to_metadata() + "\0") == written
    written.check_checkpoint("a-query")
    WriteMarker().check_checkpoint("any")
    for other in ("another", ""):
        with pytest.raises(PipelineError, match=r"its batches up to 4 from another checkpoint \(query a-query\)"):
            written.check_checkpoint(other)
