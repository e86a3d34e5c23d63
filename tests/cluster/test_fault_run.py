"""Two minutes of faults under load: nothing that was acknowledged is lost, doubled or reordered."""

from pathlib import Path

from tests.cluster.fault_run import run

_SECONDS = 120
_SEED = 700
"""Its first fifteen faults are of fourteen kinds: of processes, links and disks, and of the ZooKeeper."""


def test_acknowledged_records_survive_faults(tmp_path: Path) -> None:
    outcome = run(tmp_path, _SECONDS, _SEED, told=print)
    for what in ("records acknowledged", "jobs acknowledged", "delayed records acknowledged", "commits confirmed"):
        assert outcome.counts.get(what), what
