"""The errors of SQS with their codes in both protocols, and those that the kinds of `conveyor.kernel.errors` become.

A client of AWS JSON reads `__type` from the body. SDKs map old codes by the header `x-amzn-query-error`; a client of
the query protocol reads the same code from the XML. Source: botocore's service models 2012-11-05 (`query` and `json`).
"""

from dataclasses import dataclass
from enum import Enum, auto

from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError

_SQS = "com.amazonaws.sqs#"
_COMMON = "com.amazon.coral.service#"
_PREFIX = "AWS.SimpleQueueService."
_NO_QUEUE = "The specified queue does not exist"


class SqsErrorKind(Enum):
    """The errors that SQS documents for its operations, and those that are common to AWS."""

    ACCESS_DENIED = auto()
    BATCH_ENTRY_IDS_NOT_DISTINCT = auto()
    BATCH_REQUEST_TOO_LONG = auto()
    EMPTY_BATCH_REQUEST = auto()
    INCOMPLETE_SIGNATURE = auto()
    INTERNAL_FAILURE = auto()
    INVALID_ACTION = auto()
    INVALID_ADDRESS = auto()
    INVALID_ATTRIBUTE_NAME = auto()
    INVALID_ATTRIBUTE_VALUE = auto()
    INVALID_BATCH_ENTRY_ID = auto()
    INVALID_CLIENT_TOKEN_ID = auto()
    INVALID_ID_FORMAT = auto()
    INVALID_MESSAGE_CONTENTS = auto()
    INVALID_PARAMETER_VALUE = auto()
    INVALID_SECURITY = auto()
    MALFORMED_INPUT = auto()
    MESSAGE_NOT_IN_FLIGHT = auto()
    MISSING_AUTHENTICATION_TOKEN = auto()
    MISSING_PARAMETER = auto()
    OVER_LIMIT = auto()
    PURGE_QUEUE_IN_PROGRESS = auto()
    QUEUE_DELETED_RECENTLY = auto()
    QUEUE_DOES_NOT_EXIST = auto()
    QUEUE_NAME_EXISTS = auto()
    RECEIPT_HANDLE_IS_INVALID = auto()
    REQUEST_EXPIRED = auto()
    REQUEST_THROTTLED = auto()
    RESOURCE_NOT_FOUND = auto()
    SERVICE_UNAVAILABLE = auto()
    SIGNATURE_DOES_NOT_MATCH = auto()
    TOO_MANY_ENTRIES_IN_BATCH_REQUEST = auto()
    UNKNOWN_OPERATION = auto()
    UNSUPPORTED_OPERATION = auto()


@dataclass(frozen=True, slots=True)
class SqsErrorCodes:
    """The codes of one error.

    json_type: `__type` of AWS JSON. query_code: of the query protocol, also in `x-amzn-query-error`.
    query_status: the HTTP status in the query protocol. is_senders: whether the request has to change.
    """

    json_type: str
    query_code: str
    query_status: int = 400
    is_senders: bool = True

    @property
    def json_status(self) -> int:
        """The HTTP status in AWS JSON, which knows no other status of a client's error than 400."""
        return 400 if self.is_senders else self.query_status

    @property
    def query_error(self) -> str:
        """The value of the header `x-amzn-query-error`."""
        return f"{self.query_code};{'Sender' if self.is_senders else 'Receiver'}"


def _same(name: str, status: int = 400) -> SqsErrorCodes:
    return SqsErrorCodes(_SQS + name, name, status)


def _prefixed(name: str, status: int = 400) -> SqsErrorCodes:
    return SqsErrorCodes(_SQS + name, _PREFIX + name, status)


SQS_ERRORS: dict[SqsErrorKind, SqsErrorCodes] = {
    SqsErrorKind.ACCESS_DENIED: SqsErrorCodes(f"{_COMMON}AccessDeniedException", "AccessDenied", 403),
    SqsErrorKind.BATCH_ENTRY_IDS_NOT_DISTINCT: _prefixed("BatchEntryIdsNotDistinct"),
    SqsErrorKind.BATCH_REQUEST_TOO_LONG: _prefixed("BatchRequestTooLong"),
    SqsErrorKind.EMPTY_BATCH_REQUEST: _prefixed("EmptyBatchRequest"),
    SqsErrorKind.INCOMPLETE_SIGNATURE: SqsErrorCodes(f"{_COMMON}IncompleteSignatureException", "IncompleteSignature"),
    SqsErrorKind.INTERNAL_FAILURE: SqsErrorCodes(f"{_COMMON}InternalFailure", "InternalFailure", 500, is_senders=False),
    SqsErrorKind.INVALID_ACTION: SqsErrorCodes(f"{_COMMON}InvalidAction", "InvalidAction"),
    SqsErrorKind.INVALID_ADDRESS: _same("InvalidAddress", 404),
    SqsErrorKind.INVALID_ATTRIBUTE_NAME: _same("InvalidAttributeName"),
    SqsErrorKind.INVALID_ATTRIBUTE_VALUE: _same("InvalidAttributeValue"),
    SqsErrorKind.INVALID_BATCH_ENTRY_ID: _prefixed("InvalidBatchEntryId"),
    SqsErrorKind.INVALID_CLIENT_TOKEN_ID: SqsErrorCodes(
        f"{_COMMON}UnrecognizedClientException", "InvalidClientTokenId", 403
    ),
    SqsErrorKind.INVALID_ID_FORMAT: _same("InvalidIdFormat"),
    SqsErrorKind.INVALID_MESSAGE_CONTENTS: _same("InvalidMessageContents"),
    SqsErrorKind.INVALID_PARAMETER_VALUE: SqsErrorCodes(
        f"{_COMMON}InvalidParameterValueException", "InvalidParameterValue"
    ),
    SqsErrorKind.INVALID_SECURITY: _same("InvalidSecurity", 403),
    SqsErrorKind.MALFORMED_INPUT: SqsErrorCodes(f"{_COMMON}SerializationException", "MalformedInput"),
    SqsErrorKind.MESSAGE_NOT_IN_FLIGHT: _prefixed("MessageNotInflight"),
    SqsErrorKind.MISSING_AUTHENTICATION_TOKEN: SqsErrorCodes(
        f"{_COMMON}MissingAuthenticationTokenException", "MissingAuthenticationToken", 403
    ),
    SqsErrorKind.MISSING_PARAMETER: SqsErrorCodes(f"{_COMMON}MissingRequiredParameterException", "MissingParameter"),
    SqsErrorKind.OVER_LIMIT: _same("OverLimit", 403),
    SqsErrorKind.PURGE_QUEUE_IN_PROGRESS: _prefixed("PurgeQueueInProgress", 403),
    SqsErrorKind.QUEUE_DELETED_RECENTLY: _prefixed("QueueDeletedRecently"),
    SqsErrorKind.QUEUE_DOES_NOT_EXIST: SqsErrorCodes(f"{_SQS}QueueDoesNotExist", f"{_PREFIX}NonExistentQueue"),
    SqsErrorKind.QUEUE_NAME_EXISTS: SqsErrorCodes(f"{_SQS}QueueNameExists", "QueueAlreadyExists"),
    SqsErrorKind.RECEIPT_HANDLE_IS_INVALID: _same("ReceiptHandleIsInvalid", 404),
    SqsErrorKind.REQUEST_EXPIRED: SqsErrorCodes(f"{_COMMON}RequestExpired", "RequestExpired"),
    SqsErrorKind.REQUEST_THROTTLED: _same("RequestThrottled", 403),
    SqsErrorKind.RESOURCE_NOT_FOUND: _same("ResourceNotFoundException", 404),
    SqsErrorKind.SERVICE_UNAVAILABLE: SqsErrorCodes(
        f"{_COMMON}ServiceUnavailableException", "ServiceUnavailable", 503, is_senders=False
    ),
    SqsErrorKind.SIGNATURE_DOES_NOT_MATCH: SqsErrorCodes(
        f"{_COMMON}InvalidSignatureException", "SignatureDoesNotMatch", 403
    ),
    SqsErrorKind.TOO_MANY_ENTRIES_IN_BATCH_REQUEST: _prefixed("TooManyEntriesInBatchRequest"),
    SqsErrorKind.UNKNOWN_OPERATION: SqsErrorCodes(
        f"{_COMMON}UnknownOperationException", "UnknownOperationException", 404
    ),
    SqsErrorKind.UNSUPPORTED_OPERATION: _prefixed("UnsupportedOperation"),
}

_BY_QUERY_CODE = {codes.query_code: kind for kind, codes in SQS_ERRORS.items()}


class SqsError(RequestError):
    """An error that only SQS knows. Its message is as AWS words it: tests of applications compare it."""

    def __init__(self, sqs_kind: SqsErrorKind, message: str) -> None:
        super().__init__(ErrorKind.INVALID_REQUEST, message)
        self.sqs_kind = sqs_kind


def invalid_parameter(message: str) -> SqsError:
    """Return the error InvalidParameterValue."""
    return SqsError(SqsErrorKind.INVALID_PARAMETER_VALUE, message)


def missing_parameter(name: str) -> SqsError:
    """Return the error of a request without a member that it needs."""
    return SqsError(SqsErrorKind.MISSING_PARAMETER, f"The request must contain the parameter {name}.")


def sqs_kind_of(error: RequestError) -> SqsErrorKind:
    """Return the error of SQS that an expected error becomes. The kernel's table names its code."""
    return error.sqs_kind if isinstance(error, SqsError) else _BY_QUERY_CODE[ERRORS[error.kind].sqs_code]


def sqs_message_of(error: RequestError, *, is_query: bool) -> str:
    """Return the text of an error. A missing queue has the text of AWS, which differs by protocol.

    An error may quote a header, whose bytes need not be UTF-8. The text is.
    """
    if sqs_kind_of(error) is SqsErrorKind.QUEUE_DOES_NOT_EXIST:
        return f"{_NO_QUEUE} for this wsdl version." if is_query else f"{_NO_QUEUE}."
    return error.message.encode("utf-8", "backslashreplace").decode()
