"""Two minutes of faults under load: nothing that was acknowledged is lost, doubled or reordered."""

from pathlib import Path

from tests.cluster.fault_run import run

_SECONDS = 120


def test_acknowledged_records_survive_faults(tmp_path: Path) -> None:
    outcome = run(tmp_path, _SECONDS, seed=11, told=print)
    for what in ("records acknowledged", "jobs acknowledged", "delayed records acknowledged", "commits confirmed"):
        assert outcome.counts.get(what), what
