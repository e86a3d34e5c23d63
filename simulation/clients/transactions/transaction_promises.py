"""The promises of a cluster to transactional producers and to readers of committed records.

Invariants, by the names that failures report:

    NoIntermediateRead   no record is read before its producer has asked for the commit
    NoAbortedRead        no record is read of a transaction whose producer asked for an abort, or learned of one
    CommittedIsWhole     each acknowledged record of a transaction whose commit was confirmed is read, by every reader
    NoTornTransaction    either all records of a transaction are read in the end, in all partitions, or none
    NoZombieWrite        no record is read that was sent after a successor had its identity
    NothingTakenBack     an offset that was read holds the same record at each later read, and one that was passed over
                         holds none
    NoOffsetSkipped      a reader gets all batches from its position to the last stable offset
    SequencesHold        a partition knows the sequences of a producer whose batches it has acknowledged
    NoHangingTransaction a partition has no open transaction of a producer whose transaction has ended
    StableOffsetRises    some time after the last fault no transaction is open, and all records are stable
    OrderedOnce          the records of one producer are in order, without duplicates

A transaction without a confirmed outcome may have either, if its producer has asked for the commit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from conveyor.kernel.ids import ProducerIdentity
from simulation.ledger import InvariantBroken, Place, check_ordered_once


@dataclass(slots=True, eq=False)
class SentTransaction:
    """One transaction of one producer, as far as its client knows. commits: the outcome that the client has asked for.

    is_confirmed: the client received the reply that it has this outcome. acknowledged: by partition and offset.
    """

    name: str
    commits: bool | None = None
    is_confirmed: bool = False
    acknowledged: dict[tuple[Place, int], bytes] = field(default_factory=dict)


class TransactionPromises:
    """See the module's docstring. is_excused: whether nothing is promised any more."""

    def __init__(self, is_excused: Callable[[], bool]) -> None:
        self._is_excused = is_excused
        self._senders: dict[bytes, SentTransaction] = {}
        self._transactions: list[SentTransaction] = []
        self._zombie_values: set[bytes] = set()
        self._newest: dict[str, ProducerIdentity] = {}
        self._read: dict[tuple[Place, int], bytes] = {}
        self._passed: set[tuple[Place, int]] = set()
        self._acknowledged: dict[tuple[Place, int], SentTransaction] = {}

    def initialized(self, transactional_id: str, identity: ProducerIdentity) -> None:
        """Note that a producer has got a transactional id. Earlier identities are those of zombies from now on."""
        newest = self._newest.get(transactional_id, identity)
        if newest.producer_id != identity.producer_id or identity.producer_epoch >= newest.producer_epoch:
            self._newest[transactional_id] = identity

    def begin(self, name: str) -> SentTransaction:
        transaction = SentTransaction(name)
        self._transactions.append(transaction)
        return transaction

    def send(
        self, transaction: SentTransaction, transactional_id: str, identity: ProducerIdentity, values: Iterable[bytes]
    ) -> None:
        """Note records that are about to be sent for the first time."""
        newest = self._newest[transactional_id]
        is_zombie = identity.producer_id == newest.producer_id and identity.producer_epoch < newest.producer_epoch
        for value in values:
            self._senders[value] = transaction
            if is_zombie:
                self._zombie_values.add(value)

    def acknowledge(
        self, transaction: SentTransaction, place: Place, base_offset: int, values: Sequence[bytes]
    ) -> None:
        for offset, value in enumerate(values, base_offset):
            transaction.acknowledged[place, offset] = value
            self._acknowledged[place, offset] = transaction

    def ask(self, transaction: SentTransaction, *, commits: bool) -> None:
        """Note that the client is about to ask for an outcome for the first time."""
        transaction.commits = commits

    def confirm(self, transaction: SentTransaction) -> None:
        """Note that the client received the reply that the transaction has the outcome that it asked for."""
        transaction.is_confirmed = True
        if transaction.commits:
            for at in transaction.acknowledged:
                self._check_whole(at)

    def read(self, place: Place, visible: Mapping[int, bytes], offsets: Iterable[int]) -> None:
        """Check what a reader has read. visible: the committed records by offset. offsets: all that it has passed."""
        for offset in offsets:
            at, value = (place, offset), visible.get(offset)
            if value is None:
                self._check_passed(at)
            else:
                self._check_visible(at, value)

    def check_end(self, contents: Mapping[Place, Sequence[tuple[int, bytes]]]) -> None:
        """Check the committed records of all partitions, once everything is decided."""
        if self._is_excused():
            return
        for place, records in contents.items():
            check_ordered_once(place, records)
        found = {(place, offset): value for place, records in contents.items() for offset, value in records}
        read = set(found.values())
        sent: dict[int, list[bytes]] = {}
        for value, transaction in self._senders.items():
            sent.setdefault(id(transaction), []).append(value)
        for transaction in self._transactions:
            for at in transaction.acknowledged if transaction.commits and transaction.is_confirmed else ():
                if at not in found:
                    self.broken("CommittedIsWhole", f"{transaction.name} lacks its record at {at}")
            values = sent.get(id(transaction), [])
            missing = [value for value in values if value not in read]
            if missing and len(missing) < len(values):
                self.broken("NoTornTransaction", f"{transaction.name}: {len(values)} sent, without {missing}")

    def broken(self, invariant: str, detail: str) -> None:
        """Raise InvariantBroken, unless nothing is promised any more."""
        if not self._is_excused():
            raise InvariantBroken(invariant, detail)

    def _check_visible(self, at: tuple[Place, int], value: bytes) -> None:
        if at in self._passed or self._read.setdefault(at, value) != value:
            self.broken("NothingTakenBack", f"{at} holds {value!r}, before {self._read.get(at)!r}")
        transaction = self._senders.get(value)
        if transaction is None:
            return self.broken("NothingTakenBack", f"{at} holds {value!r}, which nobody has sent")
        if value in self._zombie_values:
            self.broken("NoZombieWrite", f"{value!r} of {transaction.name} at {at}")
        if transaction.commits is None:
            return self.broken("NoIntermediateRead", f"{value!r} of {transaction.name} at {at}")
        if not transaction.commits:
            self.broken("NoAbortedRead", f"{value!r} of {transaction.name} at {at}")

    def _check_passed(self, at: tuple[Place, int]) -> None:
        if at in self._read:
            self.broken("NothingTakenBack", f"{at} held {self._read[at]!r}, and is not read now")
        self._passed.add(at)
        self._check_whole(at)

    def _check_whole(self, at: tuple[Place, int]) -> None:
        """Check an offset that was passed over, or belongs to a committed transaction, for being both."""
        transaction = self._acknowledged.get(at)
        if at in self._passed and transaction is not None and transaction.commits and transaction.is_confirmed:
            self.broken("CommittedIsWhole", f"{transaction.name}: its record at {at} is not read")
