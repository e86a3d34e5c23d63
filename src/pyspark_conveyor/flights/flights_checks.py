"""Checks that the lake contains exactly the acknowledged records: their number, their order, and every byte."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_conveyor.flights.flight_events import RECORDS
from pyspark_conveyor.flights.flights_producer import SEQUENCE_HEADER, Acknowledged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its description, whether it passed, and the observed value."""

    what: str
    passed: bool
    found: str


def check_lake(lake: "DataFrame", acknowledged: Acknowledged) -> list[Check]:
    """Run all checks in one pass over the lake."""
    rows = _digested(lake)
    counts: dict[str, int] = {}
    ordered = True
    hashes: dict[tuple[str, int], str] = {}
    for topic, number, offsets, sequences, digests in rows:
        counts[topic] = counts.get(topic, 0) + len(offsets)
        ordered = ordered and offsets == list(range(len(offsets))) and sequences == sorted(set(sequences))
        hashes[(topic, number)] = hashlib.sha256(b"".join(digests)).hexdigest()
    produced = acknowledged.digests()
    short = hashlib.sha256("".join(hashes[place] for place in sorted(hashes)).encode()).hexdigest()[:16]
    return [
        Check(
            "every row of the files was acknowledged",
            acknowledged.total == sum(RECORDS.values()),
            f"{acknowledged.total:,}",
        ),
        Check("every acknowledged record is in the lake", counts == RECORDS, f"{sum(counts.values()):,} records"),
        Check("each partition is whole and in the order of production", ordered, f"{len(hashes)} partitions"),
        Check("content hash is the same on both sides", hashes == produced, short),
    ]


def _digested(lake: "DataFrame") -> list[tuple[str, int, list[int], list[int], list[bytes]]]:
    """Return for each partition, in offset order: offsets, sequence headers, SHA-256 of key, value and timestamp."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    nul = F.unhex(F.lit("00"))
    stamp = F.unix_millis("timestamp").cast("string").cast("binary")
    sequence = F.filter("headers", lambda header: header["key"] == SEQUENCE_HEADER)[0]["value"].cast("string")
    table = (
        lake.select(
            "topic",
            "partition",
            "offset",
            sequence.cast("long").alias("sequence"),
            F.unhex(F.sha2(F.concat("key", nul, "value", nul, stamp), 256)).alias("digest"),
        )
        .toArrow()
        .sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
    )
    groups = table.group_by(["topic", "partition"], use_threads=False)
    lists = groups.aggregate([("offset", "list"), ("sequence", "list"), ("digest", "list")])
    names = ("topic", "partition", "offset_list", "sequence_list", "digest_list")
    return list(zip(*(lists.column(name).to_pylist() for name in names), strict=True))
