"""Eight transactional workers over kills and freezes of workers and of the broker: the history has no anomaly."""

from pathlib import Path

from tests.cluster.transaction_run import run

_SECONDS = 15
_SEED = 3
"""Its faults are of all kinds."""


def test_workers_process_each_record_exactly_once(tmp_path: Path) -> None:
    report = run(tmp_path, _SECONDS, _SEED, broker_count=1, told=print)
    assert report.counts["records to process"]
    for observed in ("transactions of the group committed", "transactions of the queue committed"):
        assert report.counts[observed], observed
