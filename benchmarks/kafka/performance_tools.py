"""Kafka's own ProducerPerformance and ConsumerPerformance, as a second load generator on either system."""

import re
import subprocess
from dataclasses import dataclass

from benchmarks.kafka.release import Release

_HEAP = ("-Xmx512M",)
_TIMEOUT_S = 300
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformanceTools:
    """The two tools as Kafka's scripts start them, with the Java client's defaults but for acks and compression."""

    release: Release
    bootstrap_servers: str

    def produce(self, topic: str, count: int, size: int, warm_up: int) -> float:
        """Produce warm_up + count records with acks=all. Returns the rate after the warm-up, in bytes a second."""
        output = self._run(
            "org.apache.kafka.tools.ProducerPerformance",
            f"--topic={topic}",
            f"--num-records={warm_up + count}",
            f"--warmup-records={warm_up}",
            f"--record-size={size}",
            "--throughput=-1",
            f"--bootstrap-server={self.bootstrap_servers}",
            "--command-property",
            "acks=all",
            "compression.type=none",
        )
        return steady_records_a_second(output, count) * size

    def consume(self, topic: str, count: int) -> float:
        """Read so many records. Returns the rate of fetching, the joining of the group left out, in bytes a second."""
        output = self._run(
            "org.apache.kafka.tools.ConsumerPerformance",
            f"--topic={topic}",
            f"--num-records={count}",
            f"--bootstrap-server={self.bootstrap_servers}",
            "--timeout=60000",
        )
        return fetched_bytes_a_second(output, count)

    def _run(self, main_class: str, *arguments: str) -> str:
        finished = subprocess.run(
            self.release.command(main_class, *arguments, options=_HEAP),
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
        if finished.returncode != 0:
            raise RuntimeError(f"{main_class} failed: {(finished.stdout + finished.stderr)[-2000:]}")
        return finished.stdout


def steady_records_a_second(output: str, count: int) -> float:
    """The rate in ProducerPerformance's line for what came after the warm-up, which has to be `count` records."""
    summaries = re.findall(r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec .*99\.9th", output)
    if not summaries or int(summaries[-1][0]) != count:
        raise RuntimeError(f"not {count} records acknowledged: {output[-2000:]}")
    return float(summaries[-1][1])


def fetched_bytes_a_second(output: str, count: int) -> float:
    """`fetch.MB.sec` of ConsumerPerformance's table, which means mebibytes; all `count` records have to be in."""
    names, values = (line.split(", ") for line in output.strip().splitlines()[-2:])
    row = dict(zip(names, values, strict=True))
    if int(row["data.consumed.in.nMsg"]) < count:
        raise RuntimeError(f"not {count} records came: {output[-2000:]}")
    return float(row["fetch.MB.sec"]) * _MEBIBYTE
