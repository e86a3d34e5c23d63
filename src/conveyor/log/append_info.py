"""The result of `Log.append`."""

from typing import NamedTuple

from conveyor.kernel.ids import Offset


class AppendInfo(NamedTuple):
    """The offsets of an appended batch, inclusive. `duplicate`: its idempotent producer had appended it before."""

    first_offset: Offset
    last_offset: Offset
    append_timestamp_ms: int
    duplicate: bool = False
