"""The table of errors is total, and agrees with Kafka's codes."""

import pytest
from kio.schema.errors import ErrorCode

from conveyor.kernel.errors import (
    ERRORS,
    MAX_MESSAGE_LENGTH,
    ConveyorError,
    DiskFull,
    ErrorKind,
    ProtocolViolation,
    RequestError,
    SettingsError,
    StartupError,
    StorageFailure,
)

NOT_KAFKAS = {
    ErrorKind.INVALID_ACK_ID,
    ErrorKind.INVALID_FILTER,
    ErrorKind.INVALID_SCHEDULE,
    ErrorKind.INVALID_SUBSCRIPTION,
    ErrorKind.MESSAGE_NOT_DELAYED,
    ErrorKind.REQUEST_TOO_SLOW,
    ErrorKind.SCHEDULE_ALREADY_EXISTS,
    ErrorKind.SUBSCRIPTION_ALREADY_EXISTS,
    ErrorKind.TRANSACTION_ID_REUSED,
    ErrorKind.TRANSACTION_OUTCOME_UNKNOWN,
    ErrorKind.UNKNOWN_MESSAGE,
    ErrorKind.UNKNOWN_SCHEDULE,
    ErrorKind.UNKNOWN_SUBSCRIPTION,
}
"""Kinds that the Kafka protocol cannot cause; each has the code of a similar kind."""


def test_errors_table_is_total() -> None:
    assert set(ERRORS) == set(ErrorKind)


def test_errors_kafka_codes_are_kafkas_and_distinct() -> None:
    """DISK_FULL and PARTITION_OFFLINE share a code: Kafka does not distinguish a full disk from a failed one. Kafka has
    no code for METADATA_UNAVAILABLE.
    """
    others = {*NOT_KAFKAS, ErrorKind.DISK_FULL, ErrorKind.METADATA_UNAVAILABLE}
    kafka_codes = [codes.kafka_code for kind, codes in ERRORS.items() if kind not in others]
    assert len(set(kafka_codes)) == len(kafka_codes)
    assert {codes.kafka_code for codes in ERRORS.values()} <= {code.value for code in ErrorCode}


@pytest.mark.parametrize("kind", ErrorKind)
def test_errors_are_retriable_where_kafkas_are(kind: ErrorKind) -> None:
    assert ERRORS[kind].retriable == ErrorCode(ERRORS[kind].kafka_code).retriable


def test_errors_http_statuses_are_errors_and_only_retriable_ones_are_unavailable() -> None:
    for kind, codes in ERRORS.items():
        assert 400 <= codes.http_status < 600, kind
        assert codes.retriable or codes.http_status not in (503, 504), kind
        assert codes.sqs_code


def test_request_error_carries_its_kind_and_message() -> None:
    error = RequestError(ErrorKind.OFFSET_OUT_OF_RANGE, "offset 9 is outside 0..3")
    assert (error.kind, error.message, str(error)) == (
        ErrorKind.OFFSET_OUT_OF_RANGE,
        "offset 9 is outside 0..3",
        "offset 9 is outside 0..3",
    )
    assert error.kafka_code == ErrorCode.offset_out_of_range.value


def test_request_error_quotes_the_ends_of_a_long_name() -> None:
    error = RequestError(ErrorKind.INVALID_TOPIC, f"topic '{'x' * 32_767}' is too long: shorten it")
    assert str(error) == error.message
    assert len(error.message) <= MAX_MESSAGE_LENGTH
    assert error.message.startswith("topic 'xxx")
    assert " ... " in error.message
    assert error.message.endswith("xxx' is too long: shorten it")


@pytest.mark.parametrize("kind", [ProtocolViolation, StorageFailure, SettingsError, StartupError])
def test_expected_failures_share_one_base(kind: type[Exception]) -> None:
    assert issubclass(kind, ConveyorError)


def refuse() -> None:
    try:
        raise DiskFull("no room")
    except DiskFull as failure:
        raise RequestError(ErrorKind.PARTITION_OFFLINE, "no") from failure


def test_detached_error_refers_to_no_frame() -> None:
    with pytest.raises(RequestError) as raised:
        refuse()
    kept = raised.value.detached()
    assert kept is raised.value
    assert (kept.__traceback__, kept.__cause__, kept.__context__) == (None, None, None)
