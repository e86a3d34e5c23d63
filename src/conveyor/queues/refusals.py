"""Errors for messages that cannot be settled, or not with the given lease."""

from conveyor.kernel.errors import ErrorKind, RequestError


def lease_lost(why: str) -> RequestError:
    """Return the error for a lease that is no longer valid."""
    return RequestError(ErrorKind.LEASE_LOST, why)


def lease_unnamed() -> RequestError:
    """Return the error for a message id where a lease is required: another consumer may hold the lease by now."""
    return RequestError(
        ErrorKind.INVALID_ACK_ID,
        "the subscription delivers exactly once: settle a message by the ack_id of its lease, not by its message id",
    )


def no_message(offset: int) -> RequestError:
    """Return the error for an offset without a message."""
    return RequestError(ErrorKind.UNKNOWN_MESSAGE, f"there is no message at offset {offset}")


def subscription_gone() -> RequestError:
    """Return the error for a subscription that was deleted, or not started."""
    return RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION, "the subscription does not exist")
