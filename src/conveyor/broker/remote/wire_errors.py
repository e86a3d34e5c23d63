"""Errors and other values of calls, as msgpack: an error arrives as the same error that the other broker has raised."""

from functools import partial
from typing import Any

import msgspec

from conveyor.kernel.errors import ErrorKind, FencedLeaderEpoch, LeaderMoved, NotLeader, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.records.record_checks import RecordError, RefusedRecords


class WireError(msgspec.Struct, frozen=True, array_like=True):
    """A RequestError in a frame. leads: the leader (None if unknown) and its epoch, of a LeaderMoved only.

    record_errors: (index in the batch, message) of a RefusedRecords only.
    """

    kind: str
    message: str
    leads: tuple[int | None, int] | None = None
    record_errors: tuple[tuple[int, str], ...] | None = None


def to_wire(error: RequestError) -> WireError:
    leads, record_errors = None, None
    if isinstance(error, LeaderMoved):
        leads = error.leader, error.leader_epoch
    if isinstance(error, RefusedRecords):
        record_errors = tuple((record.batch_index, record.message) for record in error.record_errors)
    return WireError(error.kind.name, error.message, leads, record_errors)


def from_wire(error: WireError) -> RequestError:
    """Return the error that was sent. A kind of a later version becomes COORDINATOR_NOT_AVAILABLE, which names it."""
    if error.kind not in ErrorKind.__members__:
        message = f"another broker answers '{error.kind}', which this version does not have: {error.message}"
        return RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, message)
    kind = ErrorKind[error.kind]
    if error.leads is not None:
        leader, epoch = error.leads
        moved = FencedLeaderEpoch if kind is ErrorKind.FENCED_LEADER_EPOCH else NotLeader
        return moved(error.message, None if leader is None else NodeId(leader), LeaderEpoch(epoch))
    if error.record_errors is not None:
        record_errors = tuple(RecordError(*record) for record in error.record_errors)
        return RefusedRecords(kind, error.message, record_errors)
    return RequestError(kind, error.message)


def _encode_other(value: object) -> object:
    if isinstance(value, RequestError):
        return to_wire(value)
    if isinstance(value, int):  # A number of its own type, such as a duration of the REST API.
        return int(value)
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"a call cannot carry a {type(value).__name__}")


def _decode_other(kind: type, value: object) -> Any:
    if issubclass(kind, RequestError):
        return from_wire(msgspec.convert(value, WireError))
    raise NotImplementedError(f"a call cannot carry a {kind.__name__}")


encode_value = msgspec.msgpack.Encoder(enc_hook=_encode_other).encode
ValueDecoder = partial(msgspec.msgpack.Decoder, dec_hook=_decode_other)
"""Makes the decoder of a type, which may contain a RequestError."""
