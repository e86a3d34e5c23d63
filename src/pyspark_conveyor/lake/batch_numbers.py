"""Checks that a Spark checkpoint matches its query's output.

Spark plans a batch, writes it, and commits it. So the last batch that was written is planned, and the last batch that
is committed was written. If one of both was replaced by an older copy, Spark would skip batches or leave them out,
without an error.
"""

from pathlib import Path

from pyspark_conveyor.pipeline_errors import PipelineError


def check_same_time(checkpoint: Path, written: int | None, target: Path) -> None:
    """Raise PipelineError if a checkpoint is not that of the last write.

    written: the number of the last batch in the target, None without one.
    """
    last_written = -1 if written is None else written
    planned, committed = (_last(checkpoint / name) for name in ("offsets", "commits"))
    if committed > last_written:
        raise PipelineError(
            f"{target} ends with batch {last_written}, and its checkpoint with batch {committed}: {target} is an older"
            " copy, or has lost batches; restore it, or write to an empty directory"
        )
    if last_written > planned:
        raise PipelineError(
            f"{target} ends with batch {last_written}, and its checkpoint with batch {planned}: {checkpoint} is an"
            " older copy, or has lost batches; restore it, or write to an empty directory"
        )


def _last(directory: Path) -> int:
    return max((int(file.name) for file in directory.glob("[0-9]*") if file.name.isdecimal()), default=-1)
