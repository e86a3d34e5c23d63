"""The marker of an exactly-once write: which batches a task has committed, and what they held. Pure.

It is an offset that the task commits in the batch's own transaction: the last batch's number plus one. Its metadata
lists the last batches, as text: `number:rows:checksum`, the newest first, with commas between them. So a batch that is
repeated is recognized, and a batch with the same number but other rows is refused. For a stream with an id of its own,
the text begins with the id of the query, which its checkpoint holds, and a semicolon.
"""

from dataclasses import dataclass

from pyspark_conveyor.pipeline_errors import PipelineError

_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """One batch of one task. checksum: the sum of its rows' checksums."""

    number: int
    rows: int
    checksum: int


@dataclass(frozen=True, slots=True)
class WriteMarker:
    """The committed batches of a task, the newest first. checkpoint: of a stream with an id, else empty."""

    batches: tuple[WrittenBatch, ...] = ()
    checkpoint: str = ""

    @property
    def next_number(self) -> int:
        """The offset to commit: the number after the last batch."""
        return self.batches[0].number + 1 if self.batches else 0

    def is_written(self, number: int) -> bool:
        """Return whether a batch with this number was committed. Raises PipelineError if it is too old to know."""
        if number >= self.next_number:
            return False
        if number < self.batches[-1].number and len(self.batches) >= _REMEMBERED:
            raise PipelineError(
                f"batch {number} is to be written, but batch {self.next_number - 1} was written before:"
                " the checkpoint is too old; use the newest one, or a new checkpoint and a new topic"
            )
        return True

    def check_checkpoint(self, checkpoint: str) -> None:
        """Raise PipelineError if the stream has written from another checkpoint."""
        if self.batches and self.checkpoint != checkpoint:
            raise PipelineError(
                f"the stream has written its batches up to {self.next_number - 1} from another checkpoint (query"
                f" {self.checkpoint}), and would write their rows again: restore that checkpoint, or let a new"
                " streamId begin where the rows end"
            )

    def check(self, repeated: WrittenBatch) -> None:
        """Raise PipelineError if a committed batch of this number had other rows, or if this task had none."""
        before = [batch for batch in self.batches if batch.number == repeated.number]
        if before != [repeated]:
            had = before[0].rows if before else 0
            raise PipelineError(
                f"batch {repeated.number} was written before with {had} rows, and now has {repeated.rows} or others:"
                " the checkpoint was changed, or rows are not always given to the same task (sort or repartition them"
                " by their key into a fixed number of partitions)"
            )

    def with_batch(self, batch: WrittenBatch, checkpoint: str = "") -> "WriteMarker":
        return WriteMarker((batch, *self.batches)[:_REMEMBERED], checkpoint)

    def to_metadata(self) -> str:
        return (f"{self.checkpoint};" if self.checkpoint else "") + ",".join(
            f"{batch.number}:{batch.rows}:{batch.checksum:x}" for batch in self.batches
        )


def parse_marker(offset: int, metadata: str) -> WriteMarker:
    """Return the marker of a committed offset; -1 for none. Raises PipelineError if it is not a marker."""
    if offset < 0:
        return WriteMarker()
    try:
        # The C client ends metadata with a zero byte.
        checkpoint, _, entries = metadata.rstrip("\0").rpartition(";")
        parts = [entry.split(":") for entry in entries.split(",")]
        batches = tuple(WrittenBatch(int(number), int(rows), int(checksum, 16)) for number, rows, checksum in parts)
    except ValueError:
        checkpoint, batches = "", ()
    marker = WriteMarker(batches, checkpoint)
    if marker.next_number != offset:
        raise PipelineError(f"the sink's committed offset {offset} is not its marker: another client has changed it")
    return marker
