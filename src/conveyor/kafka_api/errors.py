"""Error codes and messages of per-item results."""

from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError

NONE = 0


def code(error: RequestError | None) -> int:
    """The Kafka code; 0 for none."""
    return NONE if error is None else error.kafka_code


def code_by_id(error: RequestError | None) -> int:
    """The Kafka code where topics are named by id: an unknown one is UNKNOWN_TOPIC_ID."""
    if error is not None and error.kind is ErrorKind.UNKNOWN_TOPIC:
        return ERRORS[ErrorKind.UNKNOWN_TOPIC_ID].kafka_code
    return code(error)
