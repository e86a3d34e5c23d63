"""Conveyor, as `conveyor serve` starts it."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.installation import installed_command
from benchmarks.wire import knows_itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Conveyor:
    """The system that this repository holds, with one of its flush policies."""

    policy: str
    name: str = "Conveyor"

    @property
    def topic_settings(self) -> dict[str, str]:
        return {"flush.policy": self.policy}

    def answers(self, address: str) -> bool:
        return knows_itself(address)

    def prepare(self, directory: Path, address: str) -> list[str]:
        command = [installed_command(), "serve", f"--data-dir={directory / 'data'}"]
        command.append(f"--set=topics.flush_policy={self.policy}")
        command.append(f"--set=transactions.state_flush_policy={self.policy}")
        return [*command, f"--kafka={address}", "--http=127.0.0.1:0"]
