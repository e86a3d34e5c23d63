"""Clean histories from a seed: transactional workers on an ideal broker, with kills and lost answers.

Each worker has a transactional id and reads one partition of the source. A transaction writes one result to each of two
topics per source record. Times are whole numbers, so that the order of events is plain.
"""

from itertools import count
from random import Random

import msgspec

from simulation.histories.history import (
    ClientTransaction,
    Delivery,
    History,
    HistoryPlace,
    Initialization,
    KnownOutcome,
    PollResult,
    SentRecord,
    SourceRecord,
)

TOPICS = ("results", "ledger")
_WORKERS = 3
_TRANSACTIONS = 12
_READ_EACH = 0.4


class IdealCluster:
    """Committed records by partition. Markers and aborted records take offsets, too."""

    def __init__(self, chance: Random) -> None:
        self.logs: dict[HistoryPlace, list[tuple[int, str]]] = {
            HistoryPlace(topic, number): [] for topic in TOPICS for number in range(_WORKERS)
        }
        self._ends = dict.fromkeys(self.logs, 0)
        self._chance = chance

    def append(self, records: list[SentRecord], *, commits: bool) -> list[SentRecord]:
        """Append the records of one transaction. Returns them with their offsets."""
        appended = []
        for record in records:
            offset = self._ends[record.place]
            self._ends[record.place] += self._chance.randint(1, 3)
            if commits:
                self.logs[record.place].append((offset, record.value))
            appended.append(msgspec.structs.replace(record, offset=offset))
        return appended


def clean_history(seed: int) -> History:
    """Return a history without anomalies."""
    chance, clock = Random(seed), count(1)
    cluster = IdealCluster(chance)
    transactions: list[ClientTransaction] = []
    initializations: list[Initialization] = []
    deliveries: list[Delivery] = []
    polls: list[PollResult] = []
    positions = [0] * _WORKERS
    processes = [f"worker {number} start 0" for number in range(_WORKERS)]
    read_to: dict[HistoryPlace, int] = dict.fromkeys(cluster.logs, 0)
    initializations += [_initialized(processes[number], number, clock) for number in range(_WORKERS)]
    for serial in range(_TRANSACTIONS):
        number = chance.randrange(_WORKERS)
        source = SourceRecord(HistoryPlace("source", number), positions[number])
        deliveries.append(Delivery(process=processes[number], source=source, asked_at=next(clock)))
        transaction, commits = _transaction(chance, clock, processes[number], number, serial, source)
        appended = cluster.append([*transaction.sends], commits=commits)
        is_told = transaction.outcome in (KnownOutcome.COMMITTED, KnownOutcome.ABORTED)
        knows_offsets = is_told or chance.random() < 0.5
        transactions.append(msgspec.structs.replace(transaction, sends=appended) if knows_offsets else transaction)
        positions[number] += commits
        if not is_told or chance.random() < 0.2:
            processes[number] = f"worker {number} start {serial + 1}"
            initializations.append(_initialized(processes[number], number, clock))
        for place in cluster.logs:
            if chance.random() < _READ_EACH:
                new = cluster.logs[place][read_to[place] :]
                read_to[place] += len(new)
                polls.append(PollResult(reader="reader", place=place, records=new, at=next(clock)))
    return History(
        transactions=transactions,
        initializations=initializations,
        polls=polls,
        deliveries=deliveries,
        contents={place: [*records] for place, records in cluster.logs.items()},
    )


def _initialized(process: str, number: int, clock: "count[int]") -> Initialization:
    return Initialization(process=process, transactional_id=f"id {number}", asked_at=next(clock), at=next(clock))


def _transaction(
    chance: Random, clock: "count[int]", process: str, number: int, serial: int, source: SourceRecord
) -> tuple[ClientTransaction, bool]:
    """Return a transaction as its client knows it, without offsets, and whether it is committed."""
    sends = [
        SentRecord(
            place=HistoryPlace(topic, (number + shift) % _WORKERS),
            value=f"{topic} {serial}",
            sent_at=next(clock),
            source=source,
        )
        for shift, topic in enumerate(TOPICS)
    ]
    outcome = chance.choice(
        [KnownOutcome.COMMITTED] * 4 + [KnownOutcome.ABORTED, KnownOutcome.NOT_ASKED, KnownOutcome.UNKNOWN]
    )
    commits = outcome is KnownOutcome.COMMITTED or (outcome is KnownOutcome.UNKNOWN and chance.random() < 0.5)
    return (
        ClientTransaction(
            process=process,
            transactional_id=f"id {number}",
            sends=sends,
            outcome=outcome,
            asked_at=next(clock) if outcome in (KnownOutcome.COMMITTED, KnownOutcome.UNKNOWN) else None,
            ended_at=next(clock) if outcome in (KnownOutcome.COMMITTED, KnownOutcome.ABORTED) else None,
            settled=(source,),
        ),
        commits,
    )
