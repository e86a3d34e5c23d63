"""The processes of transactional workers: started, killed, frozen, and thawed as zombies."""

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.cluster.transactional_worker import FENCED_CODE, REWOUND_CODE


class Team(NamedTuple):
    """Workers of one kind, which process every record once. program: the module of a worker. topics: of their results.
    size: the number of workers.
    """

    name: str
    program: str
    topics: Sequence[str]
    size: int


class WorkerProcesses:
    """The workers of all teams, numbered. Each start of a worker has a history file of its own.

    addresses: what the workers of each team are told about the brokers, by the team's name.
    """

    def __init__(self, directory: Path, teams: Sequence[Team], addresses: dict[str, str]) -> None:
        self.paths: dict[str, dict[str, Path]] = {team.name: {} for team in teams}
        """The history files of each team, by the names of their processes."""
        self.fenced_count = self.rewound_count = 0
        self._directory = directory
        self._addresses = addresses
        self._teams = [team for team in teams for _ in range(team.size)]
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._frozen: list[subprocess.Popen[bytes]] = []
        self._starts = 0

    @property
    def count(self) -> int:
        return len(self._teams)

    @property
    def starts_count(self) -> int:
        return self._starts

    def start(self, number: int) -> None:
        self._starts += 1
        team, worker, start = self._teams[number], f"worker-{number}", str(self._starts)
        path = self.paths[team.name][f"{worker}.{start}"] = self._directory / f"{worker}.{start}.jsonl"
        command = [sys.executable, "-m", team.program, self._addresses[team.name], worker, start, str(path)]
        self._running[number] = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill(self, number: int) -> None:
        process = self._running[number]
        process.kill()
        process.wait()
        self.start(number)

    def freeze(self, number: int) -> Callable[[], None]:
        """Freeze a worker and start its successor. Returns the function that lets it go on, as a zombie."""
        zombie = self._running[number]
        zombie.send_signal(signal.SIGSTOP)
        self._frozen.append(zombie)
        self.start(number)
        return lambda: zombie.send_signal(signal.SIGCONT)

    def restart_ended(self) -> None:
        """Start workers anew that have given up."""
        for number, process in list(self._running.items()):
            if process.poll() is not None:
                self._count(process)
                self.start(number)

    def end(self) -> None:
        """Let all processes come to their end; kill those that do not."""
        for process in (*self._running.values(), *self._frozen):
            process.terminate()
        for process in (*self._running.values(), *self._frozen):
            process.send_signal(signal.SIGCONT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process in self._frozen:
            self._count(process)

    def _count(self, process: "subprocess.Popen[bytes]") -> None:
        self.fenced_count += process.returncode == FENCED_CODE
        self.rewound_count += process.returncode == REWOUND_CODE
