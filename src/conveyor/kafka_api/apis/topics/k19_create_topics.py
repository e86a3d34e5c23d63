"""CreateTopics (key 19). v2 to v4 as v1 · v4 -1 for the broker's defaults · v5 flexible, settings in the response
(KIP-525) · v6 quota errors (KIP-599) · v7 topic ids."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.topics.configs import topic_configs
from conveyor.cluster.image import DELAY_TARGET, TopicImage
from conveyor.cluster.topic_creation import TopicOutline, TopicRequest
from conveyor.kafka_api.access.operations import may, permits, topic_refused
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.configs import config_entries
from conveyor.kafka_api.apis.topics.mutation_quota import charge_mutations
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.access.declared_access import DESCRIBE_CONFIGS, WRITE
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError

_QUOTA_ERRORS = 6
_SETTING_BYTES = 200
"""Memory of a setting in a response."""
_REFUSED = ERRORS[ErrorKind.TOPIC_AUTHORIZATION_FAILED].kafka_code


def handle(call: KafkaCall) -> None:
    call.start(_create_all(call))


async def _create_all(call: KafkaCall) -> None:
    names = Counter(topic.name for topic in call.request.topics)
    results = []
    checked_count = 0
    for requested in call.request.topics:
        if names[requested.name] == 1:
            result, count = await _create(call, requested, checked_count)
            results.append(result)
            checked_count += count
        elif requested.name not in {result["name"] for result in results}:
            twice = RequestError(ErrorKind.INVALID_REQUEST, f"topic '{requested.name}' is named twice")
            results.append(_failed(requested.name, twice))
    call.answer({"topics": results})


async def _create(call: KafkaCall, requested: Any, checked_count: int) -> tuple[dict[str, Any], int]:
    """Create a topic, or only check that it is possible.

    checked_count: partitions that other topics of the request would have, and do not have.
    Returns the result, and the number of partitions that this topic and its delay state would have, and do not have.
    """
    topics = call.broker.topics
    try:
        request = _request(requested)
        target = request.config.get(DELAY_TARGET)
        if target and not permits(call, WRITE, target):
            raise topic_refused(target)  # The broker will write there what is written to this topic.
        outline = topics.check(request, checked_count)
        if call.request.validate_only:
            return _created(call, outline), outline.added_count
        charge_mutations(call, outline.partition_count, strict_from=_QUOTA_ERRORS)
        return _created(call, await topics.create(call.caller, request)), 0
    except RequestError as error:
        return _failed(requested.name, error), 0


def _request(requested: Any) -> TopicRequest:
    assignment = {assignment.partition_index: assignment.broker_ids for assignment in requested.assignments}
    if len(assignment) != len(requested.assignments):
        raise RequestError(ErrorKind.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
    missing = [config.name for config in requested.configs if config.value is None]
    if missing:
        raise RequestError(ErrorKind.INVALID_CONFIG, f"topic setting '{missing[0]}' has no value")
    return TopicRequest(
        name=requested.name,
        partitions=requested.num_partitions,
        replication_factor=requested.replication_factor,
        assignment=assignment,
        config={config.name: config.value for config in requested.configs},
    )


def _created(call: KafkaCall, topic: TopicImage | TopicOutline) -> dict[str, Any]:
    created = {
        "name": topic.name, "topic_id": topic.topic_id, "error_code": result_errors.NONE, "error_message": None,
    }  # fmt: skip
    if not may(call, DESCRIBE_CONFIGS, topic.name):
        return created | {"topic_config_error_code": _REFUSED, "configs": None}
    configs = _configs(call.broker, topic.config)
    call.weigh(_SETTING_BYTES * len(configs))
    return created | {
        "num_partitions": topic.partition_count,
        "replication_factor": topic.replication_factor,
        "configs": configs,
    }


def _configs(broker: BrokerNode, own: Mapping[str, str]) -> list[dict[str, Any]]:
    return [config_entries.encoded(config) for config in topic_configs(own, broker.cluster.dynamic_settings.layers)]


def _failed(name: str, error: RequestError) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": result_errors.code(error),
        "error_message": error.message,
        "configs": None,
    }
