"""DescribeLogDirs (key 35): the log directory and the size of each partition in it (KIP-113).

v2 flexible · v3 a top-level error · v4 the volume's size (KIP-827) · v5 cordoned directories. There is one log
directory. A storage failure takes single partitions offline, not the directory.
"""

from collections.abc import Iterable
from typing import Any

from conveyor.broker.partitions.log_directories import LOGS
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.ports import Volume

_NO_LAG = 0
_VOLUME_SIZES = 4
_UNKNOWN = Volume("", -1, -1)


def handle(call: KafkaCall) -> None:
    """Describe the requested partitions that exist; null requests all partitions."""
    topics = call.request.topics
    wanted = None if topics is None else {(topic.topic, number) for topic in topics for number in topic.partitions}
    try:
        volume, code = call.broker.partitions.disk_room.volume(LOGS), result_errors.NONE
    except StorageFailure as failure:
        volume, code = _UNKNOWN, result_errors.code(RequestError(ErrorKind.PARTITION_OFFLINE, str(failure)))
    sizes = call.broker.partitions.table.log_sizes(wanted)
    directory = {"error_code": code, "log_dir": volume.path, "topics": _by_topic(sizes)}
    if call.header.api_version >= _VOLUME_SIZES:
        directory |= {"total_bytes": volume.total_bytes, "usable_bytes": volume.usable_bytes}
    call.answer({"error_code": result_errors.NONE, "results": [directory]}, len(sizes))


def _by_topic(sizes: Iterable[tuple[TopicPartition, int]]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for identity, size_bytes in sizes:
        topics.setdefault(identity.topic, []).append(
            {
                "partition_index": identity.partition,
                "partition_size": size_bytes,
                "offset_lag": _NO_LAG,
                "is_future_key": False,
            }
        )
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
