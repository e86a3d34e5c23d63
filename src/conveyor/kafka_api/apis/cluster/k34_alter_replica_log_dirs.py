"""AlterReplicaLogDirs (key 34): move replicas to other log directories of this broker (KIP-113). v2 flexible.

There is one log directory: a replica is already there, and cannot move to another one.
"""

from typing import Any

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions.log_directories import LOGS
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure


def handle(call: KafkaCall) -> None:
    """Answer each partition once. If the request has it in several directories, the last one counts, as in Kafka."""
    directory = _directory(call.broker)
    topics: dict[str, dict[int, RequestError | None]] = {}
    for requested in call.request.dirs:
        for topic in requested.topics:
            results = topics.setdefault(topic.name, {})
            for number in topic.partitions:
                results[number] = _error(call.broker, directory, requested.path, topic.name, number)
    call.answer({"results": [_result(name, results) for name, results in topics.items()]})


def _directory(broker: BrokerNode) -> str | RequestError:
    """Return the path of the log directory, as DescribeLogDirs does."""
    try:
        return broker.partitions.disk_room.volume(LOGS).path
    except StorageFailure as failure:
        return RequestError(ErrorKind.PARTITION_OFFLINE, str(failure))


def _error(
    broker: BrokerNode, directory: str | RequestError, requested: str, topic: str, number: int
) -> RequestError | None:
    if isinstance(directory, RequestError):
        return directory
    if requested != directory:
        return RequestError(ErrorKind.LOG_DIR_NOT_FOUND, f"this broker has one log directory, {directory}")
    try:
        partition = broker.partitions.table.find(topic, number)
    except RequestError as error:
        return error.detached()
    return None if partition.offline.reason is None else partition.offline.error()


def _result(topic: str, results: dict[int, RequestError | None]) -> dict[str, Any]:
    partitions = [
        {"partition_index": number, "error_code": result_errors.code(error)} for number, error in results.items()
    ]
    return {"topic_name": topic, "partitions": partitions}
