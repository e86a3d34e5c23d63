"""The changes of a log's files that run off the event loop, and which of them exclude each other.

flushes, new gaps, trims, a swap    at the same time, also with appends
truncation                          in memory at once; its job waits for the others, and none begins before its end
"""


class FileJobs:
    """The jobs in progress of one log.

    is_truncating: from the truncation in memory until the files are cut. is_cutting_files: the job of a truncation
    runs. truncations_count: how often sealed segments or markers were truncated: a compaction planned before is void.
    flushes_count: flushes and new gaps.
    """

    def __init__(self) -> None:
        self.is_truncating = self.is_cutting_files = self.is_swapping = False
        self.truncations_count = self.flushes_count = self.trims_count = 0

    @property
    def is_idle(self) -> bool:
        return not (self.is_cutting_files or self.is_swapping or self.flushes_count or self.trims_count)
