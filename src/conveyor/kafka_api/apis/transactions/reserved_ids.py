"""The transactional ids that the broker uses itself, for transactions over REST: no client may end or fence them."""

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.transactions.transaction_value import RESERVED_PREFIX


def check_not_reserved(transactional_id: str | None) -> None:
    """Raise RequestError (TRANSACTIONAL_ID_AUTHORIZATION_FAILED) for an id of the broker."""
    if transactional_id is not None and transactional_id.startswith(RESERVED_PREFIX):
        raise RequestError(
            ErrorKind.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"transactional ids that begin with '{RESERVED_PREFIX}' are the broker's: choose another one",
        )
