"""Every expected error is mapped to each door's errors, and its Kafka code is the protocol's own."""

import pytest
from kio.schema.errors import ErrorCode

from conveyor.kafka_api.apis.result_errors import NONE, code, code_by_id
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError

OTHER_NAMES = {
    ErrorKind.CORRUPT_BATCH: "corrupt_message",
    ErrorKind.COORDINATOR_LOADING: "coordinator_load_in_progress",
    ErrorKind.FETCH_SESSION_NOT_FOUND: "fetch_session_id_not_found",
    ErrorKind.INVALID_TOPIC: "invalid_topic_exception",
    ErrorKind.METADATA_UNAVAILABLE: "request_timed_out",
    ErrorKind.NOT_LEADER: "not_leader_or_follower",
    ErrorKind.OUT_OF_ORDER_SEQUENCE: "out_of_order_sequence_number",
    ErrorKind.DISK_FULL: "kafka_storage_error",
    ErrorKind.PARTITION_OFFLINE: "kafka_storage_error",
    ErrorKind.UNKNOWN_TOPIC: "unknown_topic_or_partition",
    ErrorKind.UNSUPPORTED_COMPRESSION: "unsupported_compression_type",
}
QUEUES = {
    ErrorKind.INVALID_ACK_ID: "invalid_request",
    ErrorKind.INVALID_FILTER: "invalid_request",
    ErrorKind.INVALID_SCHEDULE: "invalid_request",
    ErrorKind.INVALID_SUBSCRIPTION: "invalid_request",
    ErrorKind.LEASE_LOST: "invalid_record_state",
    ErrorKind.MESSAGE_NOT_DELAYED: "invalid_record_state",
    ErrorKind.REQUEST_TOO_SLOW: "request_timed_out",
    ErrorKind.SCHEDULE_ALREADY_EXISTS: "invalid_request",
    ErrorKind.SUBSCRIPTION_ALREADY_EXISTS: "invalid_request",
    ErrorKind.TRANSACTION_ID_REUSED: "invalid_request",
    ErrorKind.TRANSACTION_OUTCOME_UNKNOWN: "request_timed_out",
    ErrorKind.UNKNOWN_MESSAGE: "offset_out_of_range",
    ErrorKind.UNKNOWN_SCHEDULE: "group_id_not_found",
    ErrorKind.UNKNOWN_SUBSCRIPTION: "group_id_not_found",
}
"""Errors of the other doors only, with the nearest code of the Kafka protocol."""


def test_every_kind_is_mapped() -> None:
    assert set(ERRORS) == set(ErrorKind)


@pytest.mark.parametrize("kind", ErrorKind)
def test_a_kind_has_the_code_of_its_name_in_the_protocol(kind: ErrorKind) -> None:
    assert ERRORS[kind].kafka_code == ErrorCode[(OTHER_NAMES | QUEUES).get(kind, kind.name.lower())]


@pytest.mark.parametrize("kind", ErrorKind, ids=str)
def test_whether_a_retry_may_help_is_as_in_the_protocol(kind: ErrorKind) -> None:
    assert ERRORS[kind].retriable == ErrorCode(ERRORS[kind].kafka_code).retriable


def test_codes_are_distinct() -> None:
    """Except that a failing disk and a full disk share a code, which the other doors distinguish. METADATA_UNAVAILABLE
    has no code of its own: clients retry after a timeout.
    """
    others = {*QUEUES, ErrorKind.DISK_FULL, ErrorKind.METADATA_UNAVAILABLE}
    codes = [face.kafka_code for kind, face in ERRORS.items() if kind not in others]
    assert len(codes) == len(set(codes))


def test_no_error_is_none() -> None:
    assert code(None) == code_by_id(None) == NONE


def test_an_unknown_topic_is_an_unknown_id_in_requests_with_ids() -> None:
    unknown = RequestError(ErrorKind.UNKNOWN_TOPIC, "not there")
    assert (code(unknown), code_by_id(unknown)) == (3, 100)
    assert code_by_id(RequestError(ErrorKind.PARTITION_OFFLINE, "")) == 56
