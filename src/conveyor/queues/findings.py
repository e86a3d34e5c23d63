"""What a search for messages to lease has found."""

from conveyor.kernel.machine import LogRecord
from conveyor.queues.commands import LeasedMessage


class Findings:
    """leased: handed out, `bytes` large together. settled, expired: offsets to settle. records: of dead letters."""

    __slots__ = ("bytes", "expired", "leased", "records", "settled")

    def __init__(self) -> None:
        self.leased: list[LeasedMessage] = []
        self.settled: list[int] = []
        self.expired: list[int] = []
        self.records: list[LogRecord] = []
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self.leased or self.settled or self.expired or self.records)
