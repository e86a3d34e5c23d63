"""The result of one command: records to append, and replies to the waiting requests."""

from dataclasses import dataclass, field

from conveyor.kernel.ids import ProducerIdentity
from conveyor.kernel.state_machine import LogRecord, Outcome, Reply, Token


@dataclass(slots=True)
class Decision:
    """Collects records and replies while a command is handled. producer: see `Outcome`."""

    records: list[LogRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    producer: ProducerIdentity | None = None

    def reply(self, token: Token, value: object) -> None:
        self.replies.append(Reply(token, value))

    def add(self, other: "Decision") -> None:
        """Add the records and replies of a part of the command that could have been refused."""
        self.records += other.records
        self.replies += other.replies

    def outcome(self) -> Outcome:
        return Outcome(tuple(self.records), tuple(self.replies), producer=self.producer)
