"""The process of one worker of `conveyor serve --workers`. Its supervisor starts it; see `conveyor.server.workers`.

The argument is the worker's number, for lists of processes. The settings come from the standard input, so that a worker
that is started again has those of its supervisor, and no list of processes shows them.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from conveyor.cli.serve import log_to_stderr, run
from conveyor.kernel.errors import ConveyorError, StartupError
from conveyor.server.workers.worker_reports import (
    WorkerReady,
    WorkerRefused,
    WorkerReport,
    decode_settings,
    encode_report,
)
from conveyor.settings.tree import Settings, from_sources

if TYPE_CHECKING:
    from conveyor.server.server import Server


class ReportingBroker:
    """A broker that reports its start to its supervisor. is_ready: whether it has."""

    def __init__(self, number: str) -> None:
        self.number = number
        self.is_ready = False

    def run(self) -> None:
        """Serve until SIGTERM, or until the supervisor is gone. Exits with 1 after a failure."""
        try:
            settings = self._settings()
            log_to_stderr(settings.broker.log_level, f"worker={self.number} ")
            run(settings, Path(settings.broker.data_dir), self._announce)
        except ConveyorError as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"{error.filename or 'output'}: {error.strerror or error}")

    def _settings(self) -> Settings:
        try:
            return from_sources(decode_settings(sys.stdin.buffer.read()))
        except msgspec.MsgspecError as error:
            raise StartupError("this process is started by `conveyor serve --workers` only") from error

    def _announce(self, server: "Server", startup_ms: int) -> None:
        self._report(WorkerReady(str(server.listeners), str(server.listeners.http)))
        self.is_ready = True

    def _fail(self, reason: str) -> NoReturn:
        if self.is_ready:
            print(f"conveyor: worker {self.number}: {reason}", file=sys.stderr)
        else:
            self._report(WorkerRefused(reason))
        sys.exit(1)

    def _report(self, report: WorkerReport) -> None:
        """Write the only line of the standard output; whatever is printed later goes to standard error."""
        sys.stdout.buffer.write(encode_report(report))
        sys.stdout.flush()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    ReportingBroker(sys.argv[1]).run()
