"""Reads the history file of one transactional worker; see `transactional_worker`."""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from simulation.histories.history import (
    ClientTransaction,
    Delivery,
    HistoryPlace,
    Initialization,
    KnownOutcome,
    SentRecord,
    SourceRecord,
)
from tests.cluster.transactional_worker import SOURCE

_TOLD = {"committed": KnownOutcome.COMMITTED, "aborted": KnownOutcome.ABORTED}


class ProcessHistory(NamedTuple):
    """What one process has done, and was told."""

    transactions: list[ClientTransaction]
    initializations: list[Initialization]
    deliveries: list[Delivery]
    resets: list[str]
    """Why the consumer has lost its position."""
    contradictions: list[str]
    """Repeated requests whose answers differ."""


def read_process(process: str, path: Path) -> ProcessHistory:
    """Read the file of a process. A last line that is cut off, because the process was killed, does not count."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    events = [msgspec.json.decode(line) for line in lines]
    by_serial: dict[int, dict[str, Any]] = {}
    for event in events:
        if "serial" in event:
            by_serial.setdefault(event["serial"], {})[event["kind"]] = event
    worker = process.rpartition(".")[0]
    begun = [event["at"] for event in events if event["kind"] == "initialize"]
    initializations = [
        Initialization(process=process, transactional_id=worker, asked_at=begun[-1], at=event["at"])
        for event in events
        if event["kind"] == "initialized"
    ]
    deliveries = [
        Delivery(process=process, source=source, asked_at=event["asked_at"])
        for event in events
        if event["kind"] == "begin"
        for source in _sources(event)
    ]
    transactions = [_transaction(process, worker, steps) for steps in by_serial.values()]
    resets = [
        f"{process}, partition {event['partition']}: {event['reason']}" for event in events if event["kind"] == "reset"
    ]
    contradictions = [f"{process}: {event['reason']}" for event in events if event["kind"] == "contradiction"]
    return ProcessHistory(transactions, initializations, deliveries, resets, contradictions)


def _transaction(process: str, worker: str, steps: dict[str, Any]) -> ClientTransaction:
    begin, ask, told = (steps.get(kind) for kind in ("begin", "ask", "told"))
    assert begin is not None
    outcome = KnownOutcome.NOT_ASKED if ask is None else KnownOutcome.UNKNOWN
    offsets: dict[str, int] = {}
    if told is not None:
        outcome, offsets = _TOLD[told["outcome"]], told["offsets"]
    sources = _sources(begin)
    return ClientTransaction(
        process=process,
        transactional_id=worker,
        sends=[
            SentRecord(
                place=HistoryPlace(topic, partition),
                value=value,
                sent_at=begin["at"],
                offset=offsets.get(value),
                source=sources[at],
            )
            for topic, partition, value, at in begin["sends"]
        ],
        outcome=outcome,
        asked_at=None if ask is None else ask["at"],
        ended_at=None if told is None else told["at"],
        settled=sources,
    )


def _sources(begin: dict[str, Any]) -> list[SourceRecord]:
    return [SourceRecord(HistoryPlace(SOURCE, partition), offset) for partition, offset in begin["sources"]]
