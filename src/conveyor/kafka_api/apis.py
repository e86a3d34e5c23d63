"""Every API that this broker serves, with its versions: all that kio knows. What is not here is not advertised."""

from collections.abc import Callable
from dataclasses import dataclass

from kio.schema.index import api_key_map, schema_name_map

from conveyor.kafka_api import (
    k00_produce,
    k01_fetch,
    k02_list_offsets,
    k03_metadata,
    k08_offset_commit,
    k09_offset_fetch,
    k10_find_coordinator,
    k11_join_group,
    k12_heartbeat,
    k13_leave_group,
    k14_sync_group,
    k15_describe_groups,
    k16_list_groups,
    k18_api_versions,
    k19_create_topics,
    k20_delete_topics,
    k21_delete_records,
    k22_init_producer_id,
    k23_offset_for_leader_epoch,
    k32_describe_configs,
    k33_alter_configs,
    k35_describe_log_dirs,
    k37_create_partitions,
    k42_delete_groups,
    k43_elect_leaders,
    k44_incremental_alter_configs,
    k47_offset_delete,
    k48_describe_client_quotas,
    k49_alter_client_quotas,
    k60_describe_cluster,
    k61_describe_producers,
    k68_consumer_group_heartbeat,
    k69_consumer_group_describe,
    k71_get_telemetry_subscriptions,
    k72_push_telemetry,
    k75_describe_topic_partitions,
)
from conveyor.kafka_api.call import Call

API_VERSIONS_KEY = 18


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its key, the versions served, and what handles a request."""

    key: int
    min_version: int
    max_version: int
    handle: Callable[[Call], None]


def _api(key: int, handle: Callable[[Call], None]) -> Api:
    versions = schema_name_map[api_key_map[key]]
    return Api(key, min(versions), max(versions), handle)


_HANDLERS: dict[int, Callable[[Call], None]] = {
    0: k00_produce.handle,
    1: k01_fetch.handle,
    2: k02_list_offsets.handle,
    3: k03_metadata.handle,
    8: k08_offset_commit.handle,
    9: k09_offset_fetch.handle,
    10: k10_find_coordinator.handle,
    11: k11_join_group.handle,
    12: k12_heartbeat.handle,
    13: k13_leave_group.handle,
    14: k14_sync_group.handle,
    15: k15_describe_groups.handle,
    16: k16_list_groups.handle,
    18: k18_api_versions.handle,
    19: k19_create_topics.handle,
    20: k20_delete_topics.handle,
    21: k21_delete_records.handle,
    22: k22_init_producer_id.handle,
    23: k23_offset_for_leader_epoch.handle,
    32: k32_describe_configs.handle,
    33: k33_alter_configs.handle,
    35: k35_describe_log_dirs.handle,
    37: k37_create_partitions.handle,
    42: k42_delete_groups.handle,
    43: k43_elect_leaders.handle,
    44: k44_incremental_alter_configs.handle,
    47: k47_offset_delete.handle,
    48: k48_describe_client_quotas.handle,
    49: k49_alter_client_quotas.handle,
    60: k60_describe_cluster.handle,
    61: k61_describe_producers.handle,
    68: k68_consumer_group_heartbeat.handle,
    69: k69_consumer_group_describe.handle,
    71: k71_get_telemetry_subscriptions.handle,
    72: k72_push_telemetry.handle,
    75: k75_describe_topic_partitions.handle,
}

APIS: dict[int, Api] = {key: _api(key, handle) for key, handle in _HANDLERS.items()}
