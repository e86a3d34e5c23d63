"""What is told of messages that cannot be settled, or not by the lease that was named."""

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure


def lease_lost(why: str) -> RequestError:
    """A lease does not hold any more."""
    return RequestError(ErrorKind.LEASE_LOST, why)


def lease_unnamed() -> RequestError:
    """A message id was given where only a lease is taken: the message may be leased to another consumer by now."""
    return RequestError(
        ErrorKind.INVALID_ACK_ID,
        "the subscription delivers exactly once: name the lease by its ack_id, not the message",
    )


def no_message(offset: int) -> RequestError:
    """There is nothing at an offset."""
    return RequestError(ErrorKind.UNKNOWN_MESSAGE, f"there is no message at offset {offset}")


def unreadable(failure: StorageFailure) -> RequestError:
    """A message is there, and the disk does not give it."""
    return RequestError(ErrorKind.PARTITION_OFFLINE, f"the message cannot be read: {failure}")


def subscription_gone() -> RequestError:
    """A subscription is deleted, or has not begun."""
    return RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION, "the subscription is not there any more")
