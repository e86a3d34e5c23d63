"""Invalid administrative requests: topics, settings, quotas, elections and others.

Source: Kafka's KafkaApis, ControllerApis, ConfigAdminManager, ReplicationControlManager, ConfigurationControlManager,
ClientQuotaControlManager and DescribeTopicPartitionsRequestHandler.
"""

from typing import Any

from kio.schema.errors import ErrorCode as E

from tests.unit.kafka_api.illegal_row import Given, Row, Values


def software(name: str = "test", version: str = "1") -> Values:
    return {"client_software_name": name, "client_software_version": version}


API_VERSIONS = [
    Row(18, (3, 4), "a software name with spaces", software(name="a b"), E.invalid_request),
    Row(18, (3, 4), "a software name that begins with a dash", software(name="-a"), E.invalid_request),
    Row(18, (3, 4), "no software name", software(name=""), E.invalid_request),
    Row(18, (3, 4), "no software version", software(version=""), E.invalid_request),
]


def create(name: str = "new", **more: Any) -> Values:
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return {"topics": [wanted | more], "timeout": 1000, "validate_only": False}


def create_assigned(*brokers: tuple[int, ...], first: int = 0, **more: Any) -> Values:
    replicas = [{"partition_index": number, "broker_ids": replicas} for number, replicas in enumerate(brokers, first)]
    unset: Values = {"num_partitions": -1, "replication_factor": -1, "assignments": replicas}
    return create(**unset | more)


def with_config(name: str, value: str | None) -> Values:
    return create(configs=[{"name": name, "value": value}])


SAME_PARTITION = [{"partition_index": 0, "broker_ids": (1,)}] * 2

CREATE_TOPICS = [
    Row(19, (2, 7), "a topic that is there", create("t"), E.topic_already_exists),
    Row(19, (2, 7), "a name with spaces", create("no spaces"), E.invalid_topic_exception),
    Row(19, (2, 7), "an empty name", create(""), E.invalid_topic_exception),
    Row(19, (7,), "a name that is a directory", create(".."), E.invalid_topic_exception),
    Row(19, (7,), "a name too long", create("n" * 250), E.invalid_topic_exception),
    Row(19, (2, 7), "no partitions", create(num_partitions=0), E.invalid_partitions),
    Row(19, (7,), "a negative number of partitions", create(num_partitions=-2), E.invalid_partitions),
    Row(19, (7,), "more partitions than a broker takes", create(num_partitions=1_000_000), E.invalid_partitions),
    Row(19, (2, 7), "no replicas", create(replication_factor=0), E.invalid_replication_factor),
    Row(19, (7,), "a negative number of replicas", create(replication_factor=-2), E.invalid_replication_factor),
    Row(19, (2, 7), "more replicas than brokers", create(replication_factor=2), E.invalid_replication_factor),
    Row(19, (2, 7), "an unknown setting", with_config("no.such", "1"), E.invalid_config),
    Row(19, (2, 7), "a setting of a wrong type", with_config("segment.bytes", "many"), E.invalid_config),
    Row(19, (2, 7), "a setting out of range", with_config("segment.bytes", "1"), E.invalid_config),
    Row(19, (2, 7), "a setting without value", with_config("segment.bytes", None), E.invalid_config),
    Row(19, (2, 7), "an assignment and a count", create_assigned((1,), num_partitions=1), E.invalid_request),
    Row(19, (2, 7), "an assignment and a factor", create_assigned((1,), replication_factor=1), E.invalid_request),
    Row(
        19,
        (2, 7),
        "a partition assigned twice",
        create_assigned(assignments=SAME_PARTITION),
        E.invalid_replica_assignment,
    ),
    Row(19, (7,), "an assignment to nobody", create_assigned(()), E.invalid_replica_assignment),
    Row(19, (7,), "an assignment to an unknown broker", create_assigned((9,)), E.invalid_replica_assignment),
    Row(19, (7,), "an assignment twice to a broker", create_assigned((1, 1)), E.invalid_replica_assignment),
    Row(19, (7,), "an assignment that leaves out 0", create_assigned((1,), first=1), E.invalid_replica_assignment),
    Row(19, (2, 7), "a topic named twice", {**create(), "topics": create()["topics"] * 2}, E.invalid_request),
]


def delete(*names: str | None, topic_id: Any = None) -> Values:
    topics = [{"name": name, "topic_id": topic_id} for name in names]
    return {"topics": topics, "topic_names": names, "timeout": 1000}


DELETE_TOPICS = [
    Row(20, (1, 6), "an unknown topic", delete("nothing"), E.unknown_topic_or_partition),
    Row(20, (6,), "an unknown id", delete(None, topic_id=Given.UNKNOWN_ID), E.unknown_topic_id),
    Row(20, (6,), "neither name nor id", delete(None), E.invalid_request),
    Row(20, (6,), "name and id", delete("t", topic_id=Given.TOPIC_ID), E.invalid_request),
    Row(20, (1, 6), "a topic named twice", delete("t", "t"), E.invalid_request),
    Row(20, (6,), "an id given twice", delete(None, None, topic_id=Given.TOPIC_ID), E.invalid_request),
    Row(20, (1, 6), "the broker's own topic", delete("__consumer_offsets"), E.invalid_topic_exception),
]


def resource(kind: int = 2, name: str = "t", *configs: Values, **more: Any) -> Values:
    resource = {"resource_type": kind, "resource_name": name, "configs": configs, "configuration_keys": None}
    options = {"validate_only": False, "include_synonyms": False, "include_documentation": False}
    return {"resources": [resource]} | options | more


def setting(name: str = "segment.bytes", value: str | None = "1048576", operation: int = 0) -> Values:
    return {"name": name, "value": value, "config_operation": operation}


def changes(*configs: Values) -> Values:
    return resource(2, "t", *configs)


AT_RUN_TIME = [
    (resource(32, "g", setting("no.such")), "an unknown setting of a group", E.invalid_config),
    (resource(32, "g", setting("consumer.session.timeout.ms", "soon")), "a group's wrong value", E.invalid_config),
    (resource(32, "g", setting("consumer.session.timeout.ms", "1")), "a session below heartbeats", E.invalid_config),
    (resource(32, "", setting("consumer.session.timeout.ms")), "a setting of no group", E.invalid_request),
    (resource(4, "1", setting("no.such")), "an unknown setting of a broker", E.invalid_request),
    (resource(4, "", setting("no.such")), "an unknown setting of all brokers", E.invalid_request),
    (resource(4, "1", setting("node.id", "2")), "what needs a restart", E.invalid_request),
    (resource(4, "1", setting("log.segment.bytes", "many")), "a broker's wrong value", E.invalid_request),
    (resource(4, "1", setting("message.max.bytes", "999999999")), "a contradiction", E.invalid_request),
]
LOG_LEVELS = [
    (setting("no.such", "INFO"), "an unknown logger", E.invalid_config),
    (setting("conveyor", "LOUD"), "an unknown level", E.invalid_config),
    (setting("root", None, 1), "deleting the root's level", E.invalid_request),
    (setting("conveyor", "INFO", 2), "appending to a level", E.invalid_request),
]

OFFSETS_DELETED = resource(2, "__consumer_offsets", setting("cleanup.policy", "delete"))
MANY_SETTINGS = [setting(f"s{number}") for number in range(1_001)]
TWICE: Values = {"resources": resource()["resources"] * 2}

RESOURCES = [
    (2, "nothing", "an unknown topic", E.unknown_topic_or_partition),
    (4, "9", "another broker", E.invalid_request),
    (4, "one", "a broker's name that is no number", E.invalid_request),
    (0, "t", "a resource of unknown type", E.invalid_request),
    (99, "t", "a resource of a type that is none", E.invalid_request),
]

CONFIGS = [
    *(
        Row(key, (low, high), wrong, resource(kind, name), code)
        for key, low, high in ((32, 1, 4), (33, 0, 2), (44, 0, 1))
        for kind, name, wrong, code in RESOURCES
    ),
    Row(32, (1, 4), "a group without a name", resource(32, ""), E.invalid_request),
    Row(32, (1, 4), "loggers of no broker", resource(8, ""), E.invalid_request),
    Row(33, (0, 2), "all levels of loggers", resource(8, "1", setting("root", "INFO")), E.invalid_request),
    *(
        Row(key, (low, high), wrong, values, code)
        for key, low, high in ((33, 0, 2), (44, 0, 1))
        for values, wrong, code in AT_RUN_TIME
    ),
    *(Row(44, (0, 1), wrong, resource(8, "1", change), code) for change, wrong, code in LOG_LEVELS),
    Row(32, (1, 4), "a name with spaces", resource(2, "no spaces"), E.invalid_topic_exception),
    Row(32, (1, 4), "an empty name", resource(2, ""), E.invalid_topic_exception),
    Row(33, (0, 2), "a resource named twice", resource() | TWICE, E.invalid_request),
    Row(44, (0, 1), "a resource named twice", resource() | TWICE, E.invalid_request),
    Row(33, (0, 2), "what an own topic must have", OFFSETS_DELETED, E.invalid_config),
    Row(44, (0, 1), "what an own topic must have", OFFSETS_DELETED, E.invalid_config),
    Row(33, (0, 2), "an unknown setting", changes(setting("no.such")), E.invalid_config),
    Row(44, (0, 1), "an unknown setting", changes(setting("no.such")), E.invalid_config),
    Row(33, (0, 2), "a setting of a wrong type", changes(setting(value="many")), E.invalid_config),
    Row(44, (0, 1), "a setting of a wrong type", changes(setting(value="many")), E.invalid_config),
    Row(33, (0, 2), "a setting without value", changes(setting(value=None)), E.invalid_request),
    Row(44, (0, 1), "a setting without value", changes(setting(value=None)), E.invalid_request),
    Row(33, (0, 2), "a setting named twice", changes(setting(), setting()), E.invalid_request),
    Row(44, (0, 1), "a setting named twice", changes(setting(), setting()), E.invalid_request),
    Row(33, (0, 2), "1,001 settings of a topic", changes(*MANY_SETTINGS), E.invalid_request),
    Row(44, (0, 1), "1,001 settings of a topic", changes(*MANY_SETTINGS), E.invalid_request),
    Row(44, (0, 1), "an unknown operation", changes(setting(operation=9)), E.invalid_request),
    Row(44, (0, 1), "a negative operation", changes(setting(operation=-1)), E.invalid_request),
    Row(44, (0, 1), "appending to what is no list", changes(setting(operation=2)), E.invalid_config),
    Row(44, (0, 1), "subtracting from what is no list", changes(setting(operation=3)), E.invalid_config),
    Row(
        44, (0, 1), "appending what the list cannot have", changes(setting("cleanup.policy", "x", 2)), E.invalid_config
    ),
]

ACL: Values = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:u", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
ACL_FILTER: Values = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip

ACLS = [
    Row(29, (1, 3), "any ACLs", ACL_FILTER, E.security_disabled),
    Row(29, (1, 3), "ACLs of unknown type", ACL_FILTER | {"resource_type_filter": 99}, E.security_disabled),
    Row(30, (1, 3), "an ACL", {"creations": [ACL, ACL]}, E.security_disabled),
    Row(31, (1, 3), "any ACLs", {"filters": [ACL_FILTER, ACL_FILTER]}, E.security_disabled),
]

REASSIGNED: Values = {"timeout": 1000, "topics": [{"name": "nothing", "partition_indexes": (0, -1)}]}

LIST_PARTITION_REASSIGNMENTS = [
    Row(46, (0,), "an unknown topic: it is left out", REASSIGNED, E.none),
]


def reassign(*replicas: int, topic: str = "t", partition: int = 0, **more: Any) -> Values:
    wanted = {"partition_index": partition, "replicas": replicas or None}
    return {"timeout": 1000, "topics": [{"name": topic, "partitions": [wanted]}]} | more


NOWHERE = {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": ()}]}]}
SAME_FACTOR: Values = {"allow_replication_factor_change": False}

ALTER_PARTITION_REASSIGNMENTS = [
    Row(45, (0, 1), "an unknown topic", reassign(1, topic="nothing"), E.unknown_topic_or_partition),
    Row(45, (0, 1), "a partition beyond the last", reassign(1, partition=1), E.unknown_topic_or_partition),
    Row(45, (0, 1), "a negative partition", reassign(1, partition=-1), E.unknown_topic_or_partition),
    Row(45, (0, 1), "no replicas", reassign() | NOWHERE, E.invalid_replica_assignment),
    Row(45, (0, 1), "an unknown broker", reassign(1, 9), E.invalid_replica_assignment),
    Row(45, (0, 1), "a broker twice", reassign(1, 1), E.invalid_replica_assignment),
    Row(45, (0, 1), "nothing to cancel", reassign(), E.no_reassignment_in_progress),
    Row(45, (1,), "the replicas that it has", reassign(1, **SAME_FACTOR), E.none),
]

UNREGISTER_BROKER = [
    Row(64, (0,), "an unknown broker", {"broker_id": 9}, E.broker_id_not_registered),
    Row(64, (0,), "a negative broker", {"broker_id": -1}, E.broker_id_not_registered),
    Row(64, (0,), "a live broker", {"broker_id": 1}, E.invalid_request),
]

LIST_CONFIG_RESOURCES = [
    Row(74, (1,), "a type that is none", {"resource_types": (2, 3)}, E.unsupported_version),
]

DESCRIBE_LOG_DIRS = [
    Row(35, (1, 5), "an unknown topic: it is left out", {"topics": [{"topic": "x", "partitions": (0,)}]}, E.none),
    Row(35, (1, 5), "a negative partition: it is left out", {"topics": [{"topic": "t", "partitions": (-1,)}]}, E.none),
]


def add_partitions(count: int, *brokers: tuple[int, ...], topic: str = "t") -> Values:
    replicas = [{"broker_ids": replicas} for replicas in brokers] or None
    wanted = {"name": topic, "count": count, "assignments": replicas}
    return {"topics": [wanted], "timeout": 1000, "validate_only": False}


MORE_TWICE: Values = {"topics": add_partitions(2)["topics"] * 2}

CREATE_PARTITIONS = [
    Row(37, (0, 3), "an unknown topic", add_partitions(2, topic="nothing"), E.unknown_topic_or_partition),
    Row(37, (0, 3), "as many as there are", add_partitions(1), E.invalid_partitions),
    Row(37, (0, 3), "fewer than there are", add_partitions(0), E.invalid_partitions),
    Row(37, (0, 3), "a negative number", add_partitions(-1), E.invalid_partitions),
    Row(37, (0, 3), "more than a broker takes", add_partitions(1_000_000), E.invalid_partitions),
    Row(37, (0, 3), "too many assignments", add_partitions(2, (1,), (1,)), E.invalid_replica_assignment),
    Row(37, (0, 3), "an assignment to nobody", add_partitions(2, ()), E.invalid_replica_assignment),
    Row(37, (0, 3), "an assignment to an unknown broker", add_partitions(2, (9,)), E.invalid_replica_assignment),
    Row(37, (0, 3), "an assignment twice to a broker", add_partitions(2, (1, 1)), E.invalid_replica_assignment),
    Row(37, (0, 3), "a topic named twice", add_partitions(2) | MORE_TWICE, E.invalid_request),
]


def elect(topic: str = "t", partition: int = 0, kind: int = 0) -> Values:
    return {"election_type": kind, "topic_partitions": [{"topic": topic, "partitions": (partition,)}], "timeout": 1000}


ELECT_LEADERS = [
    Row(43, (0, 2), "an unknown topic", elect("nothing"), E.unknown_topic_or_partition),
    Row(43, (0, 2), "a partition beyond the last", elect(partition=1), E.unknown_topic_or_partition),
    Row(43, (2,), "a negative partition", elect(partition=-1), E.unknown_topic_or_partition),
    Row(43, (0, 2), "a partition that has its leader", elect(), E.election_not_needed),
    Row(43, (1, 2), "the same, unclean", elect(kind=1), E.election_not_needed),
    Row(43, (1, 2), "an unknown type of election", elect(kind=2), E.invalid_request),
    Row(43, (1, 2), "a negative type of election", elect(kind=-1), E.invalid_request),
]


def quota_filter(*parts: tuple[str, int, str | None]) -> Values:
    names = ("entity_type", "match_type", "match")
    return {"components": [dict(zip(names, row, strict=True)) for row in parts], "strict": False}


DESCRIBE_CLIENT_QUOTAS = [
    Row(48, (0, 1), "an unknown type of entity", quota_filter(("x", 2, None)), E.unsupported_version),
    Row(48, (0, 1), "a type named twice", quota_filter(("user", 2, None), ("user", 1, None)), E.invalid_request),
    Row(48, (0, 1), "addresses of users", quota_filter(("ip", 2, None), ("user", 2, None)), E.invalid_request),
    Row(48, (0, 1), "an exact match of nothing", quota_filter(("user", 0, None)), E.invalid_request),
    Row(48, (0, 1), "a default with a name", quota_filter(("user", 1, "u")), E.invalid_request),
    Row(48, (0, 1), "any, with a name", quota_filter(("user", 2, "u")), E.invalid_request),
    Row(48, (0, 1), "an unknown type of match", quota_filter(("user", 3, None)), E.invalid_request),
]


def quota(key: str = "producer_byte_rate", value: float = 1.0, **entity: str | None) -> Values:
    parts = [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in entity.items()]
    entry = {"entity": parts, "ops": [{"key": key, "value": value, "remove": False}]}
    return {"entries": [entry], "validate_only": False}


SAME_KEY = [{"key": "producer_byte_rate", "value": 1.0, "remove": False}] * 2
SAME_TYPE = [{"entity_type": "user", "entity_name": name} for name in ("u", "v")]

ALTER_CLIENT_QUOTAS = [
    Row(49, (0, 1), "no entity", quota(), E.invalid_request),
    Row(49, (0, 1), "an unknown type of entity", quota(x="u"), E.invalid_request),
    Row(49, (0, 1), "an empty name", quota(user=""), E.invalid_request),
    Row(49, (0, 1), "an address of a user", quota(user="u", ip="127.0.0.1"), E.invalid_request),
    Row(49, (0, 1), "an address that is none", quota("connection_creation_rate", ip="one"), E.invalid_request),
    Row(49, (0, 1), "an unknown key", quota("x", user="u"), E.invalid_request),
    Row(49, (0, 1), "a key of addresses", quota("connection_creation_rate", user="u"), E.invalid_request),
    Row(49, (0, 1), "a key of clients", quota(ip="127.0.0.1"), E.invalid_request),
    Row(49, (0, 1), "a value of 0", quota(value=0.0, user="u"), E.invalid_request),
    Row(49, (0, 1), "a negative value", quota(value=-1.0, client_id="c"), E.invalid_request),
    Row(49, (0, 1), "half a byte", quota(value=1.5, user="u"), E.invalid_request),
    Row(49, (0, 1), "a value that is no number", quota(value=float("nan"), user="u"), E.invalid_request),
    Row(49, (0, 1), "an infinite value", quota(value=float("inf"), user="u"), E.invalid_request),
    Row(
        49,
        (0, 1),
        "a key named twice",
        {"entries": [quota(user="u")["entries"][0] | {"ops": SAME_KEY}], "validate_only": False},
        E.invalid_request,
    ),
    Row(
        49,
        (0, 1),
        "a type named twice",
        {"entries": [quota(user="u")["entries"][0] | {"entity": SAME_TYPE}], "validate_only": False},
        E.invalid_request,
    ),
]


def describe_cluster(endpoint_type: int) -> Values:
    asked = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}
    return asked | {"endpoint_type": endpoint_type}


DESCRIBE_CLUSTER = [
    Row(60, (1, 2), "endpoints of controllers", describe_cluster(2), E.mismatched_endpoint_type),
    Row(60, (1, 2), "endpoints of no type", describe_cluster(0), E.unsupported_endpoint_type),
    Row(60, (1, 2), "endpoints of unknown type", describe_cluster(9), E.unsupported_endpoint_type),
]


def describe_topics(*names: str, cursor: tuple[str, int] | None = None) -> Values:
    start = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    return {"topics": [{"name": name} for name in names], "response_partition_limit": 10, "cursor": start}


DESCRIBE_TOPIC_PARTITIONS = [
    Row(75, (0,), "an unknown topic", describe_topics("nothing"), E.unknown_topic_or_partition),
    Row(75, (0,), "a name with spaces", describe_topics("no spaces"), E.invalid_topic_exception),
    Row(75, (0,), "an empty name", describe_topics(""), E.invalid_topic_exception),
    Row(75, (0,), "a cursor's negative partition", describe_topics("t", cursor=("t", -1)), E.invalid_request),
    Row(75, (0,), "a cursor's topic that is not asked for", describe_topics("t", cursor=("u", 0)), E.invalid_request),
]


def move(path: str, topic: str = "t", *partitions: int) -> Values:
    return {"dirs": [{"path": path, "topics": [{"name": topic, "partitions": partitions}]}]}


ALTER_REPLICA_LOG_DIRS = [
    Row(34, (1, 2), "another directory", move("/nowhere", "t", 0, -1), E.log_dir_not_found),
    Row(34, (1, 2), "no directory", move("", "t", 0), E.log_dir_not_found),
    Row(34, (1, 2), "no partitions", move("/nowhere"), E.none),
]


def quorum(topic: str, *partitions: int) -> Values:
    wanted = [{"partition_index": number} for number in partitions]
    return {"topics": [{"topic_name": topic, "partitions": wanted}]}


DESCRIBE_QUORUM = [
    Row(55, (0, 2), "a topic without a quorum", quorum("t", 0), E.unknown_topic_or_partition),
    Row(55, (0, 2), "other partitions", quorum("__cluster_metadata", 1, -1), E.unknown_topic_or_partition),
]


def update(feature: str, level: int, kind: int = 1) -> Values:
    wanted = {"feature": feature, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind > 1}
    return {"timeout": 1000, "feature_updates": [wanted]}


UPDATE_FEATURES = [
    Row(57, (0, 1, 2), "an unknown feature", update("metadata.version", 1), E.invalid_update_version),
    Row(57, (0, 1, 2), "a level that is too high", update("transaction.version", 3), E.invalid_update_version),
    Row(57, (0, 1, 2), "a negative level", update("transaction.version", -1), E.invalid_update_version),
    Row(57, (0, 1, 2), "a lower level", update("transaction.version", 1, 2), E.invalid_update_version),
    Row(57, (1, 2), "an unknown type of change", update("transaction.version", 2, 0), E.invalid_update_version),
]

ROWS = [
    *ALTER_REPLICA_LOG_DIRS,
    *DESCRIBE_QUORUM,
    *UPDATE_FEATURES,
    *API_VERSIONS,
    *CREATE_TOPICS,
    *DELETE_TOPICS,
    *CONFIGS,
    *LIST_CONFIG_RESOURCES,
    *ACLS,
    *ALTER_PARTITION_REASSIGNMENTS,
    *LIST_PARTITION_REASSIGNMENTS,
    *UNREGISTER_BROKER,
    *DESCRIBE_LOG_DIRS,
    *CREATE_PARTITIONS,
    *ELECT_LEADERS,
    *DESCRIBE_CLIENT_QUOTAS,
    *ALTER_CLIENT_QUOTAS,
    *DESCRIBE_CLUSTER,
    *DESCRIBE_TOPIC_PARTITIONS,
]
