"""Measures how long this process has run, for the line that says that it is ready."""

import os
import time
from pathlib import Path


def process_age_ms() -> int:
    """Return the age of this process, including the interpreter's start; on systems other than Linux, its CPU time."""
    try:
        started_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return int(time.process_time() * 1000)
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    return max(0, int(age * 1000))
