"""Which records a machine's state is about, if it speaks of the offsets of another log.

A queue's state says which offsets are settled, a forwarder's which offsets wait. That is true of the records that the
topic's log had then. The log may lose its end in a power failure, be begun again, or belong to another replica since an
unclean election: other records have these offsets then, however far the log has grown meanwhile. So the state's log
contains the leader epochs of the topic's log, as a header of the first record that a runner appends in each epoch, and
of each snapshot. A load compares them with the present ones; `shared_end` is the end of what the state is about. They
begin at the log start that is on the disk: a power failure may bring back records that a trim has removed in memory.

    leader-epochs    (epoch int32, start offset int64)..., big-endian: the last `_MAX_ENTRIES` entries

Earlier versions wrote no such header. Their state counts as being about all that the log had when its present leader
began to lead, and is stored with the header as soon as it is loaded.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from conveyor.log.leader_epochs import NO_EPOCH, LeaderEpochs, shared_end
from conveyor.log.log import Log
from conveyor.records.record import Header

_NAME = "leader-epochs"
_ENTRY = Struct(">iq")
_MAX_ENTRIES = 1_000
_NO_END = 1 << 62

Entries = Sequence[tuple[int, int]]


class StatedEpochs(NamedTuple):
    """What a replayed state states of the log that it is about.

    state_epoch: the leader epoch of the last records, in the state's own log; NO_EPOCH if there are none. entries: of
    the other log at that time; None if there are none, or if these records are of an earlier version.
    """

    state_epoch: int = NO_EPOCH
    entries: Entries | None = None

    @property
    def is_of_earlier_version(self) -> bool:
        return self.entries is None and self.state_epoch != NO_EPOCH

    def shared_end(self, log: Log, epoch_start_offset: int) -> int:
        """Return the offset of the other log below which it still has the records that the state is about.

        epoch_start_offset: see `LeaderTerm`. The leader of the state leads the other log, too.
        """
        if self.entries is None:
            return epoch_start_offset
        return shared_end(self.entries, _NO_END, log.leader_epochs, log.log_end_offset)


def epochs_header(epochs: LeaderEpochs) -> Header:
    """Return the header that states the leader epochs of a log."""
    return _NAME, b"".join(_ENTRY.pack(*entry) for entry in epochs.entries[-_MAX_ENTRIES:])


def read_epochs(headers: Iterable[Header]) -> Entries | None:
    """Return the entries that a record's headers state, or None."""
    for name, value in headers:
        if name == _NAME:
            return list(_ENTRY.iter_unpack(value or b""))
    return None
