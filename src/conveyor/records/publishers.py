"""The header `conveyor-publisher`, which names the user who has published a record, as `User:alice`.

Any Kafka client can send a header of that name, and a plain topic stores it unread. So a batch whose headers a broker
has set has the bit `NAMES_PUBLISHER`, which producers cannot set (`checked_batch`). Brokers show the header of such a
batch only, and copy no other one: `true_headers`. A record without the header is of a client without a login, or of
a topic that does not name the publishers of its Kafka producers.
"""

from collections.abc import Iterable

from conveyor.kernel.access.caller import ANONYMOUS, Caller, PrincipalType
from conveyor.records.batch import NAMES_PUBLISHER, BatchHeader
from conveyor.records.compression import Unpacked, contains
from conveyor.records.message_attributes import PUBLISHER
from conveyor.records.record import Header, set_header

_NAME = PUBLISHER.encode()


def publisher_of(caller: Caller) -> bytes | None:
    """Return the value of the header for what a caller publishes: empty without a login. None for a broker, which
    copies the messages of others with their headers.
    """
    principal = caller.principal
    if principal.type is PrincipalType.BROKER:
        return None
    return b"" if principal == ANONYMOUS else str(principal).encode()


def owner_of(caller: Caller) -> str:
    """Return the user whom something belongs to that a caller makes, as `User:alice`; empty without a login."""
    return (publisher_of(caller) or b"").decode()


def has_publisher(headers: Iterable[Header]) -> bool:
    return any(name == PUBLISHER for name, _ in headers)


def without_publisher(headers: tuple[Header, ...]) -> tuple[Header, ...]:
    """Return the headers without any of this name."""
    return tuple(header for header in headers if header[0] != PUBLISHER) if has_publisher(headers) else headers


def true_headers(attributes: int, headers: tuple[Header, ...]) -> tuple[Header, ...]:
    """Return the headers of a stored record, without those of this name that no broker has set. attributes: of its
    batch.
    """
    return headers if not headers or attributes & NAMES_PUBLISHER else without_publisher(headers)


def name_publisher(header: BatchHeader, content: Unpacked, publisher: bytes) -> tuple[BatchHeader, Unpacked]:
    """Return a produced batch and its decompressed records with the header of their publisher; see `publisher_of`.

    The size and the CRC of the batch are still to be set. Raises: see `set_header`.
    """
    if not publisher and not contains(content, _NAME):
        return header, content
    named = header._replace(attributes=header.attributes | NAMES_PUBLISHER)
    return named, set_header(header, content, PUBLISHER, publisher)
