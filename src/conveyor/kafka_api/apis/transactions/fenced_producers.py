"""The error codes of coordinators that older clients know."""

from conveyor.kafka_api.apis import result_errors
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError


def code(error: RequestError | None, version: int, knows_fencing_from: int) -> int:
    """Return the code of an error; INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED before a version (KIP-588)."""
    if error is not None and error.kind is ErrorKind.PRODUCER_FENCED and version < knows_fencing_from:
        return ERRORS[ErrorKind.INVALID_PRODUCER_EPOCH].kafka_code
    return result_errors.code(error)
