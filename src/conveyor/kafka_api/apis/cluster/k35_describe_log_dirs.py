"""DescribeLogDirs (key 35): the log directory, and what each partition takes of it (KIP-113).

v2 flexible · v3 a top-level error · v4 the volume's size (KIP-827) · v5 cordoned directories. There is one log
directory; its partitions go offline one by one.
"""

from collections.abc import Iterable
from typing import Any

from conveyor.broker.partitions.log_sizes import LogSize, log_sizes
from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.wire.call import Call
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Volume

_LEADERS_LAG = 0
_TELLS_SIZES = 4
_UNKNOWN = Volume("", -1, -1)


def handle(call: Call) -> None:
    """Null asks for all partitions; what is not there is left out."""
    topics = call.request.topics
    wanted = None if topics is None else {(topic.topic, number) for topic in topics for number in topic.partitions}
    try:
        volume, code = call.broker.partitions.volume(), errors.NONE
    except StorageFailure as failure:
        volume, code = _UNKNOWN, errors.code(RequestError(ErrorKind.PARTITION_OFFLINE, str(failure)))
    found = _by_topic(log_sizes(call.broker.partitions, wanted))
    directory = {"error_code": code, "log_dir": volume.path, "topics": found}
    if call.api_version >= _TELLS_SIZES:
        directory |= {"total_bytes": volume.total_bytes, "usable_bytes": volume.usable_bytes}
    call.answer({"error_code": errors.NONE, "results": [directory]})


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
