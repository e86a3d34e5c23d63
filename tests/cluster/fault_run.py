"""Runs a cluster of three brokers under load and faults, then checks everything that clients were told.

python -m tests.cluster.fault_run --seconds 1800 --seed 7 --report report.md
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from traceback import format_exception

import msgspec

from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.faults import play
from tests.cluster.ledgers import DeliveryLedger, RecordLedger, Violation
from tests.cluster.workloads import (
    DUE,
    PARTITIONS,
    RECORDS,
    Client,
    DelayedWriter,
    GroupMember,
    JobPublisher,
    JobWorker,
    RecordReader,
    RecordWriter,
    Site,
    create_topics,
    read_all,
)

_PAUSE_S = (0.5, 4.0)
"""Between two faults."""

_SETTLE_S = 120
_REPORTS = ("damaged log set aside", "disk stalled", "disk low", "log cut", "partition offline", "role=Leader")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has done. faults, counts, reports (of the brokers, in their logs): numbers by name."""

    seconds: float
    seed: int
    faults: dict[str, int]
    counts: dict[str, int]
    reports: dict[str, int]
    longest_gap_s: float

    def report(self) -> str:
        """Return the numbers as two Markdown tables."""
        lines = [f"{self.seconds:.0f} seconds of faults, seed {self.seed}.", "", "| fault | times |", "|---|---|"]
        lines += [f"| {name} | {count} |" for name, count in sorted(self.faults.items())]
        lines += ["", "| told to clients | number |", "|---|---|"]
        lines += [f"| {name} | {count:,} |" for name, count in sorted(self.counts.items())]
        lines += [f"| broker: {name} | {count:,} |" for name, count in sorted(self.reports.items())]
        lines.append(f"| longest time without an acknowledged record | {self.longest_gap_s:.1f} s |")
        return "\n".join(lines) + "\n"


class _Load:
    """All clients of a run, and their ledgers."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.records, self.jobs = RecordLedger(), DeliveryLedger()
        self.delayed = DelayedWriter(site, RecordLedger())
        self.worker = JobWorker(site, self.jobs, 0)
        committed, lock = dict[int, int](), threading.Lock()
        clients: list[Client] = [
            RecordWriter(site, self.records, "a"),
            RecordWriter(site, self.records, "b"),
            RecordReader(site, self.records),
            GroupMember(site, committed, lock),
            GroupMember(site, committed, lock),
            self.delayed,
            JobPublisher(site, self.jobs, "x"),
            JobWorker(site, self.jobs, 1),
            JobWorker(site, self.jobs, 2),
        ]
        self._threads = [threading.Thread(target=self._run, args=[client], daemon=True) for client in clients]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Wait until every client has come to its end."""
        self.site.is_over = True
        for thread in self._threads:
            thread.join(180)
            if thread.is_alive():
                self.site.errors.append("a client did not come to its end")

    def check(self) -> None:
        """Read everything to its end. Raises Violation."""
        cluster = self.site.cluster
        self.records.check(read_all(cluster, RECORDS, PARTITIONS))
        self._drain_jobs()
        self.jobs.check()
        self._check_delayed()
        if self.site.errors:
            raise Violation("\n".join(self.site.errors[:10]))

    def _drain_jobs(self) -> None:
        ends = time.monotonic() + _SETTLE_S
        while self.jobs.unsettled_count and time.monotonic() < ends:
            self.worker.work("500ms")

    def _check_delayed(self) -> None:
        last_due_ms = max(self.delayed.due_ms.values(), default=0)
        time.sleep(max(0.0, last_due_ms / 1000 - time.time() + 1))
        ends = time.monotonic() + _SETTLE_S
        while True:
            counts = Counter(read_all(self.site.cluster, DUE, 2).values())
            missing = self.delayed.acknowledged - counts.keys()
            if not missing or time.monotonic() > ends:
                break
        doubles = [value for value, count in counts.items() if count > 1]
        if missing or doubles:
            raise Violation(f"delayed records: missing {sorted(missing)[:10]}, more than once {sorted(doubles)[:10]}")

    def _run(self, client: Client) -> None:
        try:
            client.run()
        except Exception as error:  # noqa: BLE001
            trace = "".join(format_exception(error)[-3:])
            self.site.errors.append(f"{type(client).__name__}: {trace}")


def _reports(cluster: BrokerCluster) -> dict[str, int]:
    """Return how often the brokers have logged what they do about bad disks and about leaders that have failed."""
    logs = [cluster.log(number) for number in range(len(cluster.nodes))]
    return {name: sum(log.count(name) for log in logs) for name in _REPORTS}


def run(directory: Path, seconds: float, seed: int, told: Callable[[str], None]) -> Outcome:
    """Raises Violation."""
    chance, faults = Random(seed), Counter[str]()
    cluster = BrokerCluster(directory).start()
    try:
        create_topics(cluster)
        site = Site(cluster)
        load = _Load(site)
        load.start()
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(chance.uniform(*_PAUSE_S))
            faults[play(cluster, chance, lambda what: told(f"{time.monotonic() - began:6.1f} s  {what}"))] += 1
            if load.records.violations or site.errors:
                break
        told("faults have ended: the clients finish")
        load.end()
        told("checking")
        load.check()
        reports = _reports(cluster)
    finally:
        cluster.end()
    return Outcome(
        seconds=time.monotonic() - began,
        seed=seed,
        faults=dict(faults),
        counts=dict(site.counts),
        reports=reports,
        longest_gap_s=site.longest_gap_s,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--keep", type=Path, help="keep the data and the logs of the brokers here")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep or Path(temporary)
        directory.mkdir(exist_ok=True, parents=True)
        try:
            outcome = run(directory, options.seconds, options.seed, lambda line: print(line, flush=True))
        except Violation as violation:
            print(f"VIOLATION (seed {options.seed}): {violation}", flush=True)
            return 1
    report = outcome.report()
    print(report)
    if options.report:
        options.report.write_text(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
