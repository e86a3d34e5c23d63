"""The four kinds of failure, and the table that maps every expected failure to its code at each door.

- `RequestError`: expected; the client receives it. `ERRORS` maps its kind to Kafka, HTTP and SQS.
- `ProtocolViolation`: the peer does not follow the protocol; its connection is closed.
- `StorageFailure`: the partition's files cannot be trusted; the partition goes offline and reports the reason. After a
  `TransientFailure` the partition comes back online by itself; a `ReadLater` leaves it online. See `Remedy`.
- `AssertionError`: a bug; the broker stops rather than guess.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Self

from conveyor.kernel.ids import LeaderEpoch, NodeId


class ErrorKind(Enum):
    """The reason why a request fails."""

    BROKER_ID_NOT_REGISTERED = auto()
    CLUSTER_AUTHORIZATION_FAILED = auto()
    CONCURRENT_TRANSACTIONS = auto()
    CORRUPT_BATCH = auto()
    COORDINATOR_LOADING = auto()
    COORDINATOR_NOT_AVAILABLE = auto()
    DISK_FULL = auto()
    DUPLICATE_RESOURCE = auto()
    ELECTION_NOT_NEEDED = auto()
    ELIGIBLE_LEADERS_NOT_AVAILABLE = auto()
    FENCED_INSTANCE_ID = auto()
    FENCED_LEADER_EPOCH = auto()
    FENCED_MEMBER_EPOCH = auto()
    FETCH_SESSION_NOT_FOUND = auto()
    FETCH_SESSION_TOPIC_ID_ERROR = auto()
    GROUP_AUTHORIZATION_FAILED = auto()
    GROUP_ID_NOT_FOUND = auto()
    GROUP_MAX_SIZE_REACHED = auto()
    GROUP_SUBSCRIBED_TO_TOPIC = auto()
    ILLEGAL_GENERATION = auto()
    INCONSISTENT_GROUP_PROTOCOL = auto()
    INELIGIBLE_REPLICA = auto()
    INVALID_ACK_ID = auto()
    INVALID_CONFIG = auto()
    INVALID_FETCH_SESSION_EPOCH = auto()
    INVALID_FILTER = auto()
    INVALID_GROUP_ID = auto()
    INVALID_PARTITIONS = auto()
    INVALID_PRODUCER_EPOCH = auto()
    INVALID_PRODUCER_ID_MAPPING = auto()
    INVALID_RECORD = auto()
    INVALID_REGULAR_EXPRESSION = auto()
    INVALID_REPLICA_ASSIGNMENT = auto()
    INVALID_REPLICATION_FACTOR = auto()
    INVALID_REQUEST = auto()
    INVALID_REQUIRED_ACKS = auto()
    INVALID_SCHEDULE = auto()
    INVALID_SESSION_TIMEOUT = auto()
    INVALID_SUBSCRIPTION = auto()
    INVALID_TIMESTAMP = auto()
    INVALID_TOPIC = auto()
    INVALID_TRANSACTION_TIMEOUT = auto()
    INVALID_TXN_STATE = auto()
    INVALID_UPDATE_VERSION = auto()
    LEASE_LOST = auto()
    LOG_DIR_NOT_FOUND = auto()
    MEMBER_ID_REQUIRED = auto()
    MESSAGE_NOT_DELAYED = auto()
    MESSAGE_TOO_LARGE = auto()
    METADATA_UNAVAILABLE = auto()
    MISMATCHED_ENDPOINT_TYPE = auto()
    NON_EMPTY_GROUP = auto()
    NOT_CONTROLLER = auto()
    NOT_COORDINATOR = auto()
    NOT_ENOUGH_REPLICAS = auto()
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = auto()
    NOT_LEADER = auto()
    NO_REASSIGNMENT_IN_PROGRESS = auto()
    OFFSET_METADATA_TOO_LARGE = auto()
    OFFSET_NOT_AVAILABLE = auto()
    OFFSET_OUT_OF_RANGE = auto()
    OPERATION_NOT_ATTEMPTED = auto()
    OUT_OF_ORDER_SEQUENCE = auto()
    PARTITION_OFFLINE = auto()
    POLICY_VIOLATION = auto()
    PREFERRED_LEADER_NOT_AVAILABLE = auto()
    PRODUCER_FENCED = auto()
    REBALANCE_IN_PROGRESS = auto()
    REQUEST_TIMED_OUT = auto()
    REQUEST_TOO_SLOW = auto()
    RESOURCE_NOT_FOUND = auto()
    SCHEDULE_ALREADY_EXISTS = auto()
    SECURITY_DISABLED = auto()
    STALE_BROKER_EPOCH = auto()
    STALE_MEMBER_EPOCH = auto()
    SUBSCRIPTION_ALREADY_EXISTS = auto()
    THROTTLING_QUOTA_EXCEEDED = auto()
    TOPIC_ALREADY_EXISTS = auto()
    TOPIC_AUTHORIZATION_FAILED = auto()
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = auto()
    TRANSACTIONAL_ID_NOT_FOUND = auto()
    TRANSACTION_COORDINATOR_FENCED = auto()
    TRANSACTION_ABORTABLE = auto()
    TRANSACTION_ID_REUSED = auto()
    TRANSACTION_OUTCOME_UNKNOWN = auto()
    UNACCEPTABLE_CREDENTIAL = auto()
    UNKNOWN_LEADER_EPOCH = auto()
    UNKNOWN_MEMBER_ID = auto()
    UNKNOWN_MESSAGE = auto()
    UNKNOWN_SCHEDULE = auto()
    UNKNOWN_SERVER_ERROR = auto()
    UNKNOWN_SUBSCRIPTION = auto()
    UNKNOWN_TOPIC = auto()
    UNKNOWN_TOPIC_ID = auto()
    UNRELEASED_INSTANCE_ID = auto()
    UNSTABLE_OFFSET_COMMIT = auto()
    UNSUPPORTED_ASSIGNOR = auto()
    UNSUPPORTED_COMPRESSION = auto()
    UNSUPPORTED_ENDPOINT_TYPE = auto()
    UNSUPPORTED_SASL_MECHANISM = auto()
    UNSUPPORTED_VERSION = auto()


@dataclass(frozen=True, slots=True)
class ErrorCodes:
    """The codes of one kind of error at each door.

    kafka_code: the protocol's error code. http_status: the REST status. sqs_code: that of SQS's query protocol.
    retriable: whether the same request may succeed later, unchanged. Its first execution may have had an effect.
    """

    kafka_code: int
    http_status: int
    sqs_code: str
    retriable: bool = False


_INVALID = "InvalidParameterValue"
_UNAVAILABLE = "ServiceUnavailable"
_MISSING = "AWS.SimpleQueueService.NonExistentQueue"

ERRORS: dict[ErrorKind, ErrorCodes] = {
    ErrorKind.BROKER_ID_NOT_REGISTERED: ErrorCodes(102, 404, _INVALID),
    ErrorKind.CLUSTER_AUTHORIZATION_FAILED: ErrorCodes(31, 403, "AccessDenied"),
    ErrorKind.CONCURRENT_TRANSACTIONS: ErrorCodes(51, 409, _UNAVAILABLE, retriable=True),
    ErrorKind.CORRUPT_BATCH: ErrorCodes(2, 400, _INVALID, retriable=True),
    ErrorKind.COORDINATOR_LOADING: ErrorCodes(14, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.COORDINATOR_NOT_AVAILABLE: ErrorCodes(15, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.DISK_FULL: ErrorCodes(56, 507, _UNAVAILABLE, retriable=True),
    ErrorKind.DUPLICATE_RESOURCE: ErrorCodes(92, 409, _INVALID),
    ErrorKind.ELECTION_NOT_NEEDED: ErrorCodes(84, 409, _INVALID, retriable=True),
    ErrorKind.ELIGIBLE_LEADERS_NOT_AVAILABLE: ErrorCodes(83, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.FENCED_INSTANCE_ID: ErrorCodes(82, 409, _INVALID),
    ErrorKind.FENCED_LEADER_EPOCH: ErrorCodes(74, 409, _UNAVAILABLE, retriable=True),
    ErrorKind.FENCED_MEMBER_EPOCH: ErrorCodes(110, 409, _INVALID),
    ErrorKind.FETCH_SESSION_NOT_FOUND: ErrorCodes(70, 404, _INVALID, retriable=True),
    ErrorKind.FETCH_SESSION_TOPIC_ID_ERROR: ErrorCodes(106, 400, _INVALID, retriable=True),
    ErrorKind.GROUP_AUTHORIZATION_FAILED: ErrorCodes(30, 403, "AccessDenied"),
    ErrorKind.GROUP_ID_NOT_FOUND: ErrorCodes(69, 404, _MISSING),
    ErrorKind.GROUP_MAX_SIZE_REACHED: ErrorCodes(81, 409, "OverLimit"),
    ErrorKind.GROUP_SUBSCRIBED_TO_TOPIC: ErrorCodes(86, 409, _INVALID),
    ErrorKind.ILLEGAL_GENERATION: ErrorCodes(22, 409, _INVALID),
    ErrorKind.INCONSISTENT_GROUP_PROTOCOL: ErrorCodes(23, 409, _INVALID),
    ErrorKind.INELIGIBLE_REPLICA: ErrorCodes(107, 409, _INVALID),
    ErrorKind.INVALID_ACK_ID: ErrorCodes(42, 400, "ReceiptHandleIsInvalid"),
    ErrorKind.INVALID_CONFIG: ErrorCodes(40, 400, _INVALID),
    ErrorKind.INVALID_FETCH_SESSION_EPOCH: ErrorCodes(71, 409, _INVALID, retriable=True),
    ErrorKind.INVALID_FILTER: ErrorCodes(42, 400, _INVALID),
    ErrorKind.INVALID_GROUP_ID: ErrorCodes(24, 400, _INVALID),
    ErrorKind.INVALID_PARTITIONS: ErrorCodes(37, 400, _INVALID),
    ErrorKind.INVALID_PRODUCER_EPOCH: ErrorCodes(47, 409, _INVALID),
    ErrorKind.INVALID_PRODUCER_ID_MAPPING: ErrorCodes(49, 409, _INVALID),
    ErrorKind.INVALID_RECORD: ErrorCodes(87, 400, _INVALID),
    ErrorKind.INVALID_REGULAR_EXPRESSION: ErrorCodes(128, 400, _INVALID),
    ErrorKind.INVALID_REPLICA_ASSIGNMENT: ErrorCodes(39, 400, _INVALID),
    ErrorKind.INVALID_REPLICATION_FACTOR: ErrorCodes(38, 400, _INVALID),
    ErrorKind.INVALID_REQUEST: ErrorCodes(42, 400, _INVALID),
    ErrorKind.INVALID_REQUIRED_ACKS: ErrorCodes(21, 400, _INVALID),
    ErrorKind.INVALID_SCHEDULE: ErrorCodes(42, 400, _INVALID),
    ErrorKind.INVALID_SESSION_TIMEOUT: ErrorCodes(26, 400, _INVALID),
    ErrorKind.INVALID_SUBSCRIPTION: ErrorCodes(42, 400, _INVALID),
    ErrorKind.INVALID_TIMESTAMP: ErrorCodes(32, 400, _INVALID),
    ErrorKind.INVALID_TOPIC: ErrorCodes(17, 400, _INVALID),
    ErrorKind.INVALID_TRANSACTION_TIMEOUT: ErrorCodes(50, 400, _INVALID),
    ErrorKind.INVALID_TXN_STATE: ErrorCodes(48, 409, _INVALID),
    ErrorKind.INVALID_UPDATE_VERSION: ErrorCodes(95, 409, _INVALID),
    ErrorKind.LEASE_LOST: ErrorCodes(121, 409, "ReceiptHandleIsInvalid"),
    ErrorKind.LOG_DIR_NOT_FOUND: ErrorCodes(57, 404, _INVALID),
    ErrorKind.MEMBER_ID_REQUIRED: ErrorCodes(79, 409, _INVALID),
    ErrorKind.MESSAGE_NOT_DELAYED: ErrorCodes(121, 409, "AWS.SimpleQueueService.UnsupportedOperation"),
    ErrorKind.MESSAGE_TOO_LARGE: ErrorCodes(10, 413, _INVALID),
    ErrorKind.METADATA_UNAVAILABLE: ErrorCodes(7, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.MISMATCHED_ENDPOINT_TYPE: ErrorCodes(114, 400, _INVALID),
    ErrorKind.NON_EMPTY_GROUP: ErrorCodes(68, 409, _INVALID),
    ErrorKind.NOT_CONTROLLER: ErrorCodes(41, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.NOT_COORDINATOR: ErrorCodes(16, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.NOT_ENOUGH_REPLICAS: ErrorCodes(19, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCodes(20, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.NOT_LEADER: ErrorCodes(6, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.NO_REASSIGNMENT_IN_PROGRESS: ErrorCodes(85, 409, _INVALID),
    ErrorKind.OFFSET_METADATA_TOO_LARGE: ErrorCodes(12, 400, _INVALID),
    ErrorKind.OFFSET_NOT_AVAILABLE: ErrorCodes(78, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.OFFSET_OUT_OF_RANGE: ErrorCodes(1, 416, _INVALID),
    ErrorKind.OPERATION_NOT_ATTEMPTED: ErrorCodes(55, 409, _INVALID),
    ErrorKind.OUT_OF_ORDER_SEQUENCE: ErrorCodes(45, 409, _INVALID),
    ErrorKind.PARTITION_OFFLINE: ErrorCodes(56, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.PREFERRED_LEADER_NOT_AVAILABLE: ErrorCodes(80, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.PRODUCER_FENCED: ErrorCodes(90, 409, _INVALID),
    ErrorKind.POLICY_VIOLATION: ErrorCodes(44, 409, "AWS.SimpleQueueService.UnsupportedOperation"),
    ErrorKind.REBALANCE_IN_PROGRESS: ErrorCodes(27, 409, _UNAVAILABLE),
    ErrorKind.REQUEST_TIMED_OUT: ErrorCodes(7, 504, _UNAVAILABLE, retriable=True),
    ErrorKind.REQUEST_TOO_SLOW: ErrorCodes(7, 408, _INVALID, retriable=True),
    ErrorKind.RESOURCE_NOT_FOUND: ErrorCodes(91, 404, _INVALID),
    ErrorKind.SCHEDULE_ALREADY_EXISTS: ErrorCodes(42, 409, _INVALID),
    ErrorKind.SECURITY_DISABLED: ErrorCodes(54, 501, "AWS.SimpleQueueService.UnsupportedOperation"),
    ErrorKind.STALE_BROKER_EPOCH: ErrorCodes(77, 409, _INVALID),
    ErrorKind.STALE_MEMBER_EPOCH: ErrorCodes(113, 409, _INVALID),
    ErrorKind.SUBSCRIPTION_ALREADY_EXISTS: ErrorCodes(42, 409, "QueueAlreadyExists"),
    ErrorKind.THROTTLING_QUOTA_EXCEEDED: ErrorCodes(89, 429, "RequestThrottled", retriable=True),
    ErrorKind.TOPIC_ALREADY_EXISTS: ErrorCodes(36, 409, "QueueAlreadyExists"),
    ErrorKind.TOPIC_AUTHORIZATION_FAILED: ErrorCodes(29, 403, "AccessDenied"),
    ErrorKind.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ErrorCodes(53, 403, "AccessDenied"),
    ErrorKind.TRANSACTIONAL_ID_NOT_FOUND: ErrorCodes(105, 404, _MISSING),
    ErrorKind.TRANSACTION_COORDINATOR_FENCED: ErrorCodes(52, 409, _INVALID),
    ErrorKind.TRANSACTION_ABORTABLE: ErrorCodes(120, 409, _INVALID),
    ErrorKind.TRANSACTION_ID_REUSED: ErrorCodes(42, 422, _INVALID),
    ErrorKind.TRANSACTION_OUTCOME_UNKNOWN: ErrorCodes(7, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.UNACCEPTABLE_CREDENTIAL: ErrorCodes(93, 400, _INVALID),
    ErrorKind.UNKNOWN_LEADER_EPOCH: ErrorCodes(75, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.UNKNOWN_MEMBER_ID: ErrorCodes(25, 404, _INVALID),
    ErrorKind.UNKNOWN_MESSAGE: ErrorCodes(1, 404, _INVALID),
    ErrorKind.UNKNOWN_SCHEDULE: ErrorCodes(69, 404, _MISSING),
    ErrorKind.UNKNOWN_SERVER_ERROR: ErrorCodes(-1, 500, "InternalFailure"),
    ErrorKind.UNKNOWN_SUBSCRIPTION: ErrorCodes(69, 404, _MISSING),
    ErrorKind.UNKNOWN_TOPIC: ErrorCodes(3, 404, _MISSING, retriable=True),
    ErrorKind.UNKNOWN_TOPIC_ID: ErrorCodes(100, 404, _MISSING, retriable=True),
    ErrorKind.UNRELEASED_INSTANCE_ID: ErrorCodes(111, 409, _INVALID),
    ErrorKind.UNSTABLE_OFFSET_COMMIT: ErrorCodes(88, 503, _UNAVAILABLE, retriable=True),
    ErrorKind.UNSUPPORTED_ASSIGNOR: ErrorCodes(112, 400, _INVALID),
    ErrorKind.UNSUPPORTED_COMPRESSION: ErrorCodes(76, 415, _INVALID),
    ErrorKind.UNSUPPORTED_ENDPOINT_TYPE: ErrorCodes(115, 400, _INVALID),
    ErrorKind.UNSUPPORTED_SASL_MECHANISM: ErrorCodes(33, 400, _INVALID),
    ErrorKind.UNSUPPORTED_VERSION: ErrorCodes(35, 400, _INVALID),
}


MAX_MESSAGE_LENGTH = 2_000
"""The most characters of an error message. Many responses take 32,767 bytes, of which a character has up to four."""
_CUT = " ... "


class ConveyorError(Exception):
    """The base class of every expected failure of this package."""


class RequestError(ConveyorError):
    """A request that cannot be executed. `kind` is the reason; the message says what to do.

    A long message loses its middle: it quotes a name that would not fit into a response.
    """

    def __init__(self, kind: ErrorKind, message: str) -> None:
        if len(message) > MAX_MESSAGE_LENGTH:
            half = (MAX_MESSAGE_LENGTH - len(_CUT)) // 2
            message = message[:half] + _CUT + message[-half:]
        super().__init__(message)
        self.kind = kind
        self.message = message

    @property
    def kafka_code(self) -> int:
        return ERRORS[self.kind].kafka_code

    def detached(self) -> Self:
        """Return this error without its traceback and its causes, so that it can be kept as a result.

        They refer to the frames of all callers, and one of those to the result. Such a cycle keeps the request's bytes
        in memory until the garbage collector runs.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class LeaderMoved(RequestError):  # noqa: N818 - named for what it is
    """The client asks by old metadata. Carries the leader of the partition and its epoch, if known. Source: KIP-951."""

    def __init__(self, kind: ErrorKind, message: str, leader: NodeId | None, leader_epoch: LeaderEpoch) -> None:
        super().__init__(kind, message)
        self.leader = leader
        self.leader_epoch = leader_epoch


class NotLeader(LeaderMoved):
    """This broker does not lead the partition."""

    def __init__(self, message: str, leader: NodeId | None, leader_epoch: LeaderEpoch) -> None:
        super().__init__(ErrorKind.NOT_LEADER, message, leader, leader_epoch)


class FencedLeaderEpoch(LeaderMoved):
    """The client knows an older leader epoch of the partition than this broker."""

    def __init__(self, message: str, leader: NodeId | None, leader_epoch: LeaderEpoch) -> None:
        super().__init__(ErrorKind.FENCED_LEADER_EPOCH, message, leader, leader_epoch)


class QuotaExceeded(RequestError):  # noqa: N818 - named for what it is
    """The client is over a quota. wait_ms: the time until it may ask again."""

    def __init__(self, message: str, wait_ms: int) -> None:
        super().__init__(ErrorKind.THROTTLING_QUOTA_EXCEEDED, message)
        self.wait_ms = wait_ms


class ProtocolViolation(ConveyorError):  # noqa: N818 - named for what it is
    """The peer sent bytes that are not a valid request; the connection is closed."""


class StorageFailure(ConveyorError):  # noqa: N818 - named for what it is
    """A file could not be written, flushed or trusted; its partition goes offline."""


class LogDiverged(StorageFailure):
    """A log has committed records that its leader lacks. No other copy may replace it."""


class LogDamaged(StorageFailure):
    """A log lacks a file, or has bytes that are not those that were written. Another copy may replace it."""


class LogIncomplete(StorageFailure):
    """A log, or its end, is missing that was on this disk. Opening what is left would hide that."""


class TransientFailure(StorageFailure):
    """A failure that leaves stored data intact; a later attempt may succeed."""


class StoreUnreachable(TransientFailure):
    """The metadata store has not answered; it may have carried out what it was asked for."""


class ReadLater(TransientFailure):
    """A read that cannot be done now and can be retried; the disk is intact."""


class OutOfFiles(ReadLater):
    """No file can be opened, because too many are open. Reads can be retried."""


class DiskFull(TransientFailure):
    """The disk has no space for a write. A failed sync is never a DiskFull, because the data to sync is lost."""


class Remedy(Enum):
    """The remedies that may bring a log back: to open it again, to copy another replica's log, or another leader."""

    REOPEN = auto()
    COPY = auto()
    NEW_LEADER = auto()


def remedy_of(failure: StorageFailure) -> Remedy:
    """Return what may bring a log back after this failure."""
    if isinstance(failure, TransientFailure):
        return Remedy.REOPEN
    return Remedy.NEW_LEADER if isinstance(failure, LogDiverged) else Remedy.COPY


class InconsistentState(Exception):  # noqa: N818 - named for what it is
    """A bug in the middle of a change, so that memory may differ from the logs. The broker stops.

    Any other unexpected exception during a request concerns that request only.
    """


class SettingsError(ConveyorError):
    """A setting has an invalid value. The message names the setting and a valid value."""


class StartupError(ConveyorError):
    """The broker cannot start. The message is one line that says what to change."""


def storage_failure(error: RequestError) -> StorageFailure:
    """Return the failure of the metadata store that was the reason, or one with the same message."""
    return error.__cause__ if isinstance(error.__cause__, StorageFailure) else StorageFailure(error.message)


def metadata_failure(failure: StorageFailure) -> RequestError:
    """Return the error of a request that the metadata store could not execute."""
    kind = ErrorKind.DISK_FULL if isinstance(failure, DiskFull) else ErrorKind.METADATA_UNAVAILABLE
    return RequestError(kind, str(failure))
