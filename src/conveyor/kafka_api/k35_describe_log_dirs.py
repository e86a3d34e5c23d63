"""DescribeLogDirs (key 35): the log directory, and what each partition takes of it (KIP-113).

v2 flexible · v3 a top-level error · v4 the volume's size (KIP-827), which is not known here: -1 · v5 cordoned
directories. There is one log directory, named as it is below the data directory; its partitions go offline one by one.
"""

from collections.abc import Iterable
from typing import Any

from conveyor.broker.log_sizes import LogSize, log_sizes
from conveyor.broker.partitions import LOGS
from conveyor.kafka_api import errors
from conveyor.kafka_api.call import Call

_LEADERS_LAG = 0


def handle(call: Call) -> None:
    """Null asks for all partitions; what is not there is left out."""
    topics = call.request.topics
    wanted = None if topics is None else {(topic.topic, number) for topic in topics for number in topic.partitions}
    found = _by_topic(log_sizes(call.broker.partitions, wanted))
    call.answer({"error_code": errors.NONE, "results": [{"error_code": errors.NONE, "log_dir": LOGS, "topics": found}]})


def _by_topic(sizes: Iterable[LogSize]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for each in sizes:
        topics.setdefault(each.partition.topic, []).append(
            {
                "partition_index": each.partition.partition,
                "partition_size": each.size_bytes,
                "offset_lag": _LEADERS_LAG,
                "is_future_key": False,
            }
        )
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
