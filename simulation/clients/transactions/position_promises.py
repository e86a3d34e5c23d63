"""The promises of a cluster about the positions that a client commits in its transactions.

Invariant, by the name that failures report:

    PositionsFollowOutcomes   a group has the position of its last committed transaction: of the last one whose commit
                              was confirmed, or of a later one whose client got no answer
"""

from typing import NamedTuple

from simulation.clients.transactions.transaction_promises import SentTransaction, TransactionPromises


class _Attempt(NamedTuple):
    position: int
    transaction: SentTransaction


class PositionPromises:
    """The rising positions of one group, which only one client commits, one transaction after the other."""

    def __init__(self, promises: TransactionPromises) -> None:
        self._promises = promises
        self._known = -1
        self._attempts: list[_Attempt] = []

    def attempt(self, position: int, transaction: SentTransaction) -> None:
        """Note that a position is about to be committed in a transaction."""
        self._attempts.append(_Attempt(position, transaction))

    def check(self, position: int) -> None:
        """Check a position that the group has (-1: none). No transaction of the client is open."""
        for attempt in self._attempts:
            if attempt.transaction.is_confirmed and attempt.transaction.commits:
                self._known = max(self._known, attempt.position)
        in_doubt = {
            attempt.position
            for attempt in self._attempts
            if attempt.transaction.commits and attempt.position > self._known
        }
        if position not in {self._known, *in_doubt}:
            detail = f"the position is {position}, known is {self._known}, in doubt are {sorted(in_doubt)}"
            return self._promises.broken("PositionsFollowOutcomes", detail)
        self._known, self._attempts = position, []
        return None
