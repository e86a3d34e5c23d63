"""The interface that a partition with several replicas calls, so that other brokers learn of its progress."""

from typing import Protocol, TypeVar

Replicated = TypeVar("Replicated", contravariant=True)
"""A partition."""


class ReplicationObserver(Protocol[Replicated]):
    """Receives the progress of a partition that has other replicas. Partitions with one replica have no observer.

    The observer learns from `Partition.changed` what a term commits.
    """

    def written(self, partition: Replicated) -> None:
        """Records were written."""
        ...

    def flushed(self, partition: Replicated) -> None:
        """Records were flushed."""
        ...

    def trimmed(self, partition: Replicated) -> None:
        """The log start offset has risen, on the disk, too."""
        ...

    async def trimmed_by_all(self, partition: Replicated, offset: int, timeout_ms: int) -> int:
        """Wait until the log of each replica that may lead next, and of each live one, starts at an offset or above.
        Returns the lowest of these starts.

        Raises RequestError: REQUEST_TIMED_OUT, NOT_LEADER, PARTITION_OFFLINE.
        """
        ...
