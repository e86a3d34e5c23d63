"""The promises to clients of REST, which ask any broker.

Invariants, by the names that failures report:

    OncePerRequest      a message is in its topic at most once: no broker that passes a request on sends a batch again
                        that may be stored; requests with the same id have one effect; an acknowledged message is there
    WholeTransaction    all messages of a transaction are committed and all its leases acknowledged, or nothing is: all
                        if that was the answer, nothing if the request was refused
    ProcessedOnce       once the queue is empty, each of its messages was acknowledged by exactly one transaction whose
                        messages are committed, unless it was leased after the last transaction
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from simulation.ledger import InvariantBroken


@dataclass(slots=True, eq=False)
class RestTransaction:
    """A transaction of one request. outcome: True if the client's reply says committed, False if refused."""

    name: str
    values: Sequence[bytes]
    message_ids: Sequence[str]
    outcome: bool | None = None


@dataclass(slots=True)
class RestPromises:
    """See the module's docstring. is_excused: whether records may be lost. acknowledged: messages, by value, with
    their ids.
    """

    is_excused: Callable[[], bool]
    acknowledged: dict[bytes, str] = field(default_factory=dict)
    transactions: list[RestTransaction] = field(default_factory=list)

    def check_published(self, found: Iterable[bytes]) -> None:
        """Check the messages that are in the queue's topic."""
        counts = Counter(found)
        for value, count in counts.items():
            if count > 1:
                self._break("OncePerRequest", f"{value!r} is there {count} times")
        for value in self.acknowledged:
            if value not in counts:
                self._break("OncePerRequest", f"{value!r} was acknowledged, and is not there")

    def check_transactions(self, found: Iterable[bytes]) -> None:
        """Check the committed messages of transactions."""
        counts = Counter(found)
        for transaction in self.transactions:
            present = [counts[value] for value in transaction.values]
            is_whole = set(present) <= {1} if transaction.outcome else set(present) <= {0}
            if transaction.outcome is None:
                is_whole = len(set(present)) == 1 and present[0] < 2
            if not is_whole:
                detail = f"{transaction.name}, answered {transaction.outcome}, has {present} of {transaction.values}"
                self._break("WholeTransaction", detail)

    def check_processed(self, found: Iterable[bytes], left: Iterable[str]) -> None:
        """Check that messages were acknowledged with their transactions. left: the ids of those that were not."""
        values, unprocessed = set(found), set(left)
        processed = Counter(
            message_id
            for transaction in self.transactions
            if transaction.values[0] in values
            for message_id in transaction.message_ids
        )
        for message_id, count in processed.items():
            if count > 1 or message_id in unprocessed:
                self._break("ProcessedOnce", f"message {message_id}: {count} transactions, left: {sorted(unprocessed)}")
        for message_id in self.acknowledged.values():
            if message_id not in processed and message_id not in unprocessed:
                self._break("ProcessedOnce", f"message {message_id} was acknowledged without a transaction")

    def _break(self, invariant: str, detail: str) -> None:
        if not self.is_excused():
            raise InvariantBroken(invariant, detail)
