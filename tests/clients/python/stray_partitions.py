"""Partitions that librdkafka reads from the wrong broker, although it knows their leaders.

If a leader moves away and back before the thread of its broker has let go of the partition, librdkafka (2.16.0) hands
the partition to the broker between, which does not lead it any more. From then on it takes that broker for a follower
from which it is to read, and asks it in vain until the leader moves again. Only its statistics tell.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

LOOKS_EVERY_MS = 1000
_LOOKS = 10
"""A partition that changes its broker is on the wrong one for a moment."""

_Place = tuple[str, int]
_Brokers = tuple[int, int]


class StrayPartitions:
    """Those of a consumer that reads from leaders only."""

    def __init__(self) -> None:
        self._looks: dict[tuple[_Place, _Brokers], int] = {}
        """How often in succession a partition was seen with this leader at that other broker."""

    @property
    def found(self) -> list[str]:
        """Each as its topic and number."""
        return [f"{topic} {number}" for ((topic, number), _), looks in self._looks.items() if looks >= _LOOKS]

    def look(self, statistics: str) -> None:
        """Take what librdkafka tells each `LOOKS_EVERY_MS`."""
        self._looks = {seen: self._looks.get(seen, 0) + 1 for seen in _at_others(json.loads(statistics))}


def _at_others(told: Mapping[str, Any]) -> Iterator[tuple[_Place, _Brokers]]:
    """Yield each partition that is read from a connected broker which is not its leader, with the leader and that
    broker.
    """
    for broker in told["brokers"].values():
        if broker["state"] != "UP" or broker["nodeid"] < 0:
            continue
        for read in broker["toppars"].values():
            leader = told["topics"][read["topic"]]["partitions"][str(read["partition"])]["leader"]
            if leader not in (-1, broker["nodeid"]):
                yield (read["topic"], read["partition"]), (leader, broker["nodeid"])
