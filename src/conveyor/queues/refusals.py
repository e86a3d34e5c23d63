"""Errors for messages that cannot be settled, or not with the given lease."""

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure


def lease_lost(why: str) -> RequestError:
    """The lease is no longer valid."""
    return RequestError(ErrorKind.LEASE_LOST, why)


def lease_unnamed() -> RequestError:
    """A message id was given where a lease is required: another consumer may have leased the message by now."""
    return RequestError(
        ErrorKind.INVALID_ACK_ID,
        "the subscription delivers exactly once: settle a message by the ack_id of its lease, not by its message id",
    )


def no_message(offset: int) -> RequestError:
    """The offset holds no message."""
    return RequestError(ErrorKind.UNKNOWN_MESSAGE, f"there is no message at offset {offset}")


def unreadable(failure: StorageFailure) -> RequestError:
    """The message exists, but the disk cannot deliver it."""
    return RequestError(ErrorKind.PARTITION_OFFLINE, f"the message cannot be read: {failure}")


def subscription_gone() -> RequestError:
    """The subscription was deleted, or has not been started."""
    return RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION, "the subscription does not exist")
