"""The APIs that this broker serves and advertises, and the rights that each needs: `_DECLARED` lists them.

Each is served from the oldest version that kio supports to the newest one that its handler and kio have in common.

Produce is served from version 3 on but, as in Kafka (KAFKA-18659), advertised from version 0 on: before 2.9, librdkafka
concludes from missing old versions that the broker supports neither gzip, snappy nor lz4, and does not compress.
SaslHandshake is served from version 1 on and advertised from version 0 on: without that version, older librdkafka, such
as kcat's in Debian 12, concludes that the broker knows no SASL. It sends version 1.
"""

from dataclasses import dataclass
from typing import Any

from kio.schema.index import api_key_map, schema_name_map

from conveyor.kernel.access.declared_access import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER_ACTION,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    IDEMPOTENT_WRITE,
    NO_ACCESS,
    READ,
    TWO_PHASE_COMMIT,
    WRITE,
    FieldValues,
    Needs,
    any_of,
    any_topic,
    cluster,
    group,
    to_create,
    topic,
    transactional_id,
)

PRODUCE_KEY, FETCH_KEY, METADATA_KEY, API_VERSIONS_KEY, DESCRIBE_TOPIC_PARTITIONS_KEY = 0, 1, 3, 18, 75
SASL_HANDSHAKE_KEY, CONSUMER_GROUP_HEARTBEAT_KEY = 17, 68

_IS_FOLLOWER: FieldValues = (("replica_state.replica_id", "replica_id"), range(1 << 31))
_FINDS_GROUP: FieldValues = (("key_type",), (0,))
_FINDS_TRANSACTION: FieldValues = (("key_type",), (1,))
_KEYS = ("coordinator_keys", "key")
_OF_TOPIC: FieldValues = (("resources.resource_type",), (2,))
_OF_BROKER: FieldValues = (("resources.resource_type",), (4, 8, 16))
_OF_GROUP: FieldValues = (("resources.resource_type",), (32,))
"""The settings of a topic; those of a broker, its loggers, and its clients' metrics; those of a group."""
_NAME = "resources.resource_name"
_TOPICS_OF_GROUPS = ("groups.topics.name", "groups.topics.topic_id", "topics.name")

_ALTERS_CONFIGS: Needs = (
    cluster(ALTER_CONFIGS, given=_OF_BROKER),
    topic(ALTER_CONFIGS, _NAME, given=_OF_TOPIC),
    group(ALTER_CONFIGS, _NAME, given=_OF_GROUP),
)

_DECLARED: dict[int, tuple[int, Needs]] = {
    0: (13, (transactional_id(WRITE, "transactional_id"), topic(WRITE, "topic_data.name", "topic_data.topic_id"))),
    1: (18, (any_of(cluster(CLUSTER_ACTION, given=_IS_FOLLOWER), topic(READ, "topics.topic", "topics.topic_id")),)),
    2: (11, (topic(DESCRIBE, "topics.name", listed_by=("topics.name",)),)),
    3: (13, (
        topic(DESCRIBE, "topics.name", "topics.topic_id", listed_by=("topics.name", "topics.topic_id")),
        to_create("topics.name"),
    )),
    8: (10, (group(READ, "group_id"), topic(READ, "topics.name", "topics.topic_id"))),
    9: (10, (
        group(DESCRIBE, "groups.group_id", "group_id"),
        topic(DESCRIBE, *_TOPICS_OF_GROUPS, listed_by=_TOPICS_OF_GROUPS),
    )),
    10: (6, (
        group(DESCRIBE, *_KEYS, given=_FINDS_GROUP),
        transactional_id(DESCRIBE, *_KEYS, given=_FINDS_TRANSACTION),
    )),
    11: (9, (group(READ, "group_id"),)),
    12: (4, (group(READ, "group_id"),)),
    13: (5, (group(READ, "group_id"),)),
    14: (5, (group(READ, "group_id"),)),
    15: (6, (group(DESCRIBE, "groups"),)),
    16: (5, (any_of(cluster(DESCRIBE), group(DESCRIBE, listed_by=("groups.group_id",))),)),
    17: (1, NO_ACCESS),
    18: (5, NO_ACCESS),
    19: (7, (any_of(cluster(CREATE), topic(CREATE, "topics.name")),)),
    20: (6, (topic(DELETE, "topics.name", "topics.topic_id", "topic_names"),)),
    21: (2, (topic(DELETE, "topics.name"),)),
    22: (6, (
        transactional_id(WRITE, "transactional_id"),
        transactional_id(TWO_PHASE_COMMIT, "transactional_id", given=(("enable2_pc",), (1,))),
        any_of(any_topic(WRITE, unless="transactional_id"), cluster(IDEMPOTENT_WRITE, unless="transactional_id")),
    )),
    23: (4, (any_of(cluster(CLUSTER_ACTION), topic(DESCRIBE, "topics.topic")),)),
    24: (3, (
        transactional_id(WRITE, "v3_and_below_transactional_id"),
        topic(WRITE, "v3_and_below_topics.name"),
    )),
    25: (4, (transactional_id(WRITE, "transactional_id"), group(READ, "group_id"))),
    26: (5, (transactional_id(WRITE, "transactional_id"),)),
    27: (2, (any_of(cluster(ALTER), cluster(CLUSTER_ACTION)),)),
    28: (6, (transactional_id(WRITE, "transactional_id"), group(READ, "group_id"), topic(READ, "topics.name"))),
    29: (3, (cluster(DESCRIBE),)),
    30: (3, (cluster(ALTER),)),
    31: (3, (cluster(ALTER),)),
    32: (4, (
        cluster(DESCRIBE_CONFIGS, given=_OF_BROKER),
        topic(DESCRIBE_CONFIGS, _NAME, given=_OF_TOPIC),
        group(DESCRIBE_CONFIGS, _NAME, given=_OF_GROUP),
    )),
    33: (2, _ALTERS_CONFIGS),
    34: (2, (cluster(ALTER),)),
    35: (5, (cluster(DESCRIBE),)),
    36: (2, NO_ACCESS),
    37: (3, (topic(ALTER, "topics.name"),)),
    42: (2, (group(DELETE, "groups_names"),)),
    43: (2, (cluster(ALTER),)),
    44: (1, _ALTERS_CONFIGS),
    45: (1, (cluster(ALTER),)),
    46: (0, (cluster(DESCRIBE),)),
    47: (0, (group(DELETE, "group_id"), topic(READ, "topics.name"))),
    48: (1, (cluster(DESCRIBE_CONFIGS),)),
    49: (1, (cluster(ALTER_CONFIGS),)),
    50: (0, (cluster(DESCRIBE),)),
    51: (0, (cluster(ALTER),)),
    55: (2, (cluster(DESCRIBE),)),
    57: (2, (cluster(ALTER),)),
    60: (2, NO_ACCESS),
    61: (0, (topic(READ, "topics.name"),)),
    64: (0, (cluster(ALTER),)),
    65: (0, (
        transactional_id(DESCRIBE, "transactional_ids"),
        topic(DESCRIBE, listed_by=("transaction_states.topics.topic",)),
    )),
    66: (1, (transactional_id(DESCRIBE, listed_by=("transaction_states.transactional_id",)),)),
    68: (1, (group(READ, "group_id"), topic(DESCRIBE, "subscribed_topic_names"))),
    69: (1, (group(DESCRIBE, "group_ids"), topic(DESCRIBE))),
    74: (1, (cluster(DESCRIBE_CONFIGS),)),
    75: (0, (topic(DESCRIBE, "topics.name"),)),
}  # fmt: skip
"""Of each API, the newest version that its handler implements, and the rights that its requests need.

AddPartitionsToTxn from v4 on is for brokers, and ListTransactions v2 has patterns, which are not served yet. kio 0.6.5
has no ApiVersions v5 and no TxnOffsetCommit v6.

A fetch that continues a session reads all topics of the session, and not only those that it names. DescribeCluster
shows everybody the brokers, as Metadata does. ConsumerGroupDescribe shows groups whose members' topics the caller may
describe.
"""

_OLDEST = {SASL_HANDSHAKE_KEY: 1}
"""After SaslHandshake v0 the client's messages are no requests, which is not offered."""

_ADVERTISED_FROM_0 = (PRODUCE_KEY, SASL_HANDSHAKE_KEY)

_OVERLAPS = {PRODUCE_KEY: frozenset({PRODUCE_KEY, FETCH_KEY}), FETCH_KEY: frozenset({FETCH_KEY})}
"""The APIs whose unanswered requests do not delay a later request of this API on the same connection.

All other requests wait, as in Kafka, until the earlier ones are answered, so every request sees the effects of those
before it. Produce may overlap because partitions append in the order of the requests, and Fetch because it has no
effect. The relation is transitive: a request that may overlap with the last started one may overlap with all.
"""

assert all(_OVERLAPS[earlier] <= overlaps for overlaps in _OVERLAPS.values() for earlier in overlaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """One API and its served versions. needs: the rights for a request. overlaps: see `_OVERLAPS`."""

    key: int
    versions: range
    advertised_min_version: int
    overlaps: frozenset[int]
    needs: Needs

    @property
    def min_version(self) -> int:
        return self.versions[0]

    @property
    def max_version(self) -> int:
        return self.versions[-1]


def _served(key: int, newest: int, needs: Needs) -> ServedApi:
    kio_versions = schema_name_map[api_key_map[key]]
    versions = range(_OLDEST.get(key, min(kio_versions)), min(newest, max(kio_versions)) + 1)
    return ServedApi(
        key=key,
        versions=versions,
        advertised_min_version=0 if key in _ADVERTISED_FROM_0 else versions[0],
        overlaps=_OVERLAPS.get(key, frozenset()),
        needs=needs,
    )


SERVED_APIS: dict[int, ServedApi] = {key: _served(key, *declared) for key, declared in _DECLARED.items()}


def advertised_versions() -> list[dict[str, Any]]:
    """Return the field `api_keys` of the ApiVersions response: every API with its advertised versions."""
    return [advertised(api) for api in SERVED_APIS.values()]


def advertised(api: ServedApi) -> dict[str, Any]:
    """Return an API's entry in the field `api_keys`."""
    return {"api_key": api.key, "min_version": api.advertised_min_version, "max_version": api.max_version}


def unsupported_version_reason(api: ServedApi, version: int) -> str:
    """Return the reason for closing the connection of a client that requested an unsupported version."""
    served = f"api key {api.key} version {version}: versions {api.min_version} to {api.max_version} are served"
    if version >= api.min_version:
        return served
    if api.key in (PRODUCE_KEY, FETCH_KEY):
        return f"{served}; message formats 0 and 1 are not supported: use a client of Kafka 0.11 or newer"
    return f"{served}; the client is too old: use producers and consumers of Kafka 0.11 or newer, tools of 2.0 or newer"
