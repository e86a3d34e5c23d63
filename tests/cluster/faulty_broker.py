"""`conveyor serve` on a disk with faults. Each line of standard input begins another fault, or ends it.

    hang          flushes wait                              fail         flushes fail
    block         flushes and writes wait, and so does      fail once    the next flush fails
                  the event loop                            full         writes find no space
    slow 0.2      each flush takes so many seconds more     heal         no fault any more

The adapters of the broker are the real ones: only the system calls that they make are replaced. A file `boot-id` beside
the data directory stands for another boot of the machine.
"""

import errno
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conveyor.adapters import disk, kernel_syncs
from conveyor.adapters.peers.tcp_peer_network import TcpPeerNetwork
from conveyor.cli.serve import serve
from conveyor.kernel.ports import File
from conveyor.server import server

BOOT = "boot-id"


class Usage(NamedTuple):
    """As `shutil.disk_usage`."""

    total: int
    used: int
    free: int


class DiskFaults:
    """The present fault. The event loop and the threads of the broker meet it, another thread changes it."""

    def __init__(self) -> None:
        self.fault = "heal"
        self._seconds = 0.0
        self._healed = threading.Event()

    def read(self) -> None:
        """Follow the lines of standard input."""
        for line in sys.stdin:
            fault, _, argument = line.strip().partition(" ")
            self._seconds = float(argument) if fault == "slow" else 0.0
            self._healed.set()
            self._healed = threading.Event()
            self.fault = "fail once" if argument == "once" else fault

    def before_flush(self) -> None:
        """Raises OSError."""
        if self.fault in ("hang", "block"):
            self._healed.wait()
        elif self.fault == "slow":
            time.sleep(self._seconds)
        elif self.fault in ("fail", "fail once"):
            self.fault = "heal" if self.fault == "fail once" else self.fault
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def before_write(self) -> None:
        """Raises OSError."""
        if self.fault == "block":
            self._healed.wait()
        elif self.fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


FAULTS = DiskFaults()


class FaultyOs:
    """The module `os` with faults."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fdatasync(self, descriptor: int) -> None:
        FAULTS.before_flush()
        os.fdatasync(descriptor)

    def fsync(self, descriptor: int) -> None:
        FAULTS.before_flush()
        os.fsync(descriptor)

    def write(self, descriptor: int, content: bytes) -> int:
        FAULTS.before_write()
        return os.write(descriptor, content)

    def writev(self, descriptor: int, buffers: Sequence[bytes]) -> int:
        FAULTS.before_write()
        return os.writev(descriptor, buffers)

    def posix_fallocate(self, descriptor: int, start: int, size: int) -> None:
        FAULTS.before_write()
        os.posix_fallocate(descriptor, start, size)


class FaultyShutil:
    """The module `shutil` with a disk that may be full."""

    def __getattr__(self, name: str) -> Any:
        return getattr(shutil, name)

    def disk_usage(self, path: str) -> Usage:
        usage = shutil.disk_usage(path)
        is_full = FAULTS.fault == "full"
        return Usage(usage.total, usage.total if is_full else usage.used, 0 if is_full else usage.free)


class FaultySyncs(kernel_syncs.KernelSyncs):
    """Takes no flush during a fault, so that a thread meets it."""

    def begin(self, wanted: Sequence[tuple[File, kernel_syncs.Done]]) -> int:
        return super().begin(wanted) if FAULTS.fault == "heal" else 0


def load_boot_id() -> None:
    """Use the boot of the file, if there is one."""
    data = Path(sys.argv[sys.argv.index("--data-dir") + 1])
    if (data.parent / BOOT).exists():
        boot = (data.parent / BOOT).read_text()
        vars(server).update(boot_id=lambda: boot)


def dial_from_own_address() -> None:
    """Let the proxies of the links tell by the address who dials."""
    host, _, _ = sys.argv[sys.argv.index("--peer") + 1].rpartition(":")
    TcpPeerNetwork.dials_from = host, 0


if __name__ == "__main__":
    load_boot_id()
    dial_from_own_address()
    vars(disk).update(os=FaultyOs(), shutil=FaultyShutil())
    server._load_kernel_syncs = lambda: FaultySyncs
    threading.Thread(target=FAULTS.read, name="faults", daemon=True).start()
    serve(sys.argv[1:])
