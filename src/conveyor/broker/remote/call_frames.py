"""The frames of a link for calls, in msgpack: an array that begins with the frame's number.

    asker -> answerer   [1, call id, name, image seq, payload, caller]   Ask       image seq: of the asker's image
                        [2, call id]                                     Withdraw  the asker waits no longer
    answerer -> asker   [3, call id, payload]                            Answered
                        [4, call id, error]                              Refused   error: see `WireError`

The asker chooses the call ids, rising from 1 on each link. caller: see `Caller`; null on a link to a metadata store,
where no client stands behind a call.
"""

from typing import Annotated, Any

import msgspec

from conveyor.broker.remote.wire_errors import WireError
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ports import Bytes

CallId = Annotated[int, msgspec.Meta(ge=1)]


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """See the module's docstring, as for the other frames."""

    call_id: CallId
    name: str
    image_seq: int
    payload: bytes
    caller: Caller | None


class Withdraw(msgspec.Struct, frozen=True, array_like=True, tag=2):
    call_id: CallId


class Answered(msgspec.Struct, frozen=True, array_like=True, tag=3):
    call_id: CallId
    payload: bytes


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=4):
    call_id: CallId
    error: WireError


encode_frame = msgspec.msgpack.Encoder().encode
_from_asker = msgspec.msgpack.Decoder(Ask | Withdraw)
_from_answerer = msgspec.msgpack.Decoder(Answered | Refused)


def decode_from_asker(frame: Bytes) -> Ask | Withdraw:
    """Raise ProtocolViolation."""
    decoded: Ask | Withdraw = _decoded(_from_asker, frame)
    return decoded


def decode_from_answerer(frame: Bytes) -> Answered | Refused:
    """Raise ProtocolViolation."""
    decoded: Answered | Refused = _decoded(_from_answerer, frame)
    return decoded


def _decoded(decoder: Any, frame: Bytes) -> Any:
    try:
        return decoder.decode(frame)
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors.
        raise ProtocolViolation(f"a frame of a link for calls: {error}") from error
