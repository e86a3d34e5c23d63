"""Error codes and messages of per-item results."""

from typing import Any

from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError

NONE = 0


def code(error: RequestError | None) -> int:
    """Return the error's Kafka code; 0 for None."""
    return NONE if error is None else error.kafka_code


def code_by_id(error: RequestError | None) -> int:
    """Return the error's Kafka code for a request with topic ids: UNKNOWN_TOPIC_ID instead of UNKNOWN_TOPIC."""
    if error is not None and error.kind is ErrorKind.UNKNOWN_TOPIC:
        return ERRORS[ErrorKind.UNKNOWN_TOPIC_ID].kafka_code
    return code(error)


def fields(error: RequestError | None) -> dict[str, Any]:
    """Return the fields error_code and error_message, which most responses and their items have."""
    return {"error_code": code(error), "error_message": None if error is None else error.message}
