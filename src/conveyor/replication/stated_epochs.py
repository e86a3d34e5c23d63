"""Leader epochs in a machine's log: they state which records of another log the machine's state is about.

A queue's state says which offsets are settled, a forwarder's which offsets wait. That is true of the records that the
topic's log had then. The log may lose its end in a power failure, be begun again, or belong to another replica since an
unclean election: other records have these offsets then, however far the log has grown meanwhile. So the state's log
contains the leader epochs of the topic's log, as a header of the first record that a runner appends in each epoch, and
of each snapshot. A load compares them with the present ones; `stated_end` is the end of what the state is about. They
begin at the log start that is on the disk: a power failure may bring back records that a trim has removed in memory.

    leader-epochs    (epoch int32, start offset int64)..., big-endian: the last `_MAX_ENTRIES` entries

A state without the header, such as an empty one, is about no record.
"""

from collections.abc import Iterable, Sequence
from struct import Struct

from conveyor.log.leader_epochs import LeaderEpochs, shared_end
from conveyor.log.log import Log
from conveyor.records.record import Header

_NAME = "leader-epochs"
_ENTRY = Struct(">iq")
_MAX_ENTRIES = 1_000
_NO_END = 1 << 62

Entries = Sequence[tuple[int, int]]


def stated_end(entries: Entries, log: Log) -> int:
    """Return the offset of the other log below which it still has the records that the state is about.

    entries: of the other log, as the state states them last; none if it does not.
    """
    return shared_end(entries, _NO_END, log.leader_epochs, log.log_end_offset)


def epochs_header(epochs: LeaderEpochs) -> Header:
    """Return the header that states the leader epochs of a log."""
    return _NAME, b"".join(_ENTRY.pack(*entry) for entry in epochs.entries[-_MAX_ENTRIES:])


def read_epochs(headers: Iterable[Header]) -> Entries | None:
    """Return the entries that a record's headers state, or None."""
    for name, value in headers:
        if name == _NAME:
            return list(_ENTRY.iter_unpack(value or b""))
    return None
