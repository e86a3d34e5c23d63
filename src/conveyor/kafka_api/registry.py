"""Every API that this broker serves, with its versions: all that kio knows. What is not here is not advertised.

Produce is advertised from version 0 on, as Kafka does (KAFKA-18659), though it is served from 3 on: librdkafka before
2.9 takes a broker without it for one that knows neither gzip, snappy nor lz4, and sends records uncompressed instead.

What handles an API is loaded with its first request, or by `load_all` once the broker is ready: a client that only
produces need not wait for groups.
"""

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import cast

from kio.schema.index import api_key_map, schema_name_map

from conveyor.kafka_api.wire.call import Call

PRODUCE_KEY, FETCH_KEY, API_VERSIONS_KEY = 0, 1, 18

_MODULES = (
    "records.k00_produce",
    "records.k01_fetch",
    "records.k02_list_offsets",
    "topics.k03_metadata",
    "groups.k08_offset_commit",
    "groups.k09_offset_fetch",
    "groups.k10_find_coordinator",
    "groups.k11_join_group",
    "groups.k12_heartbeat",
    "groups.k13_leave_group",
    "groups.k14_sync_group",
    "groups.k15_describe_groups",
    "groups.k16_list_groups",
    "cluster.k18_api_versions",
    "topics.k19_create_topics",
    "topics.k20_delete_topics",
    "records.k21_delete_records",
    "records.k22_init_producer_id",
    "records.k23_offset_for_leader_epoch",
    "cluster.k29_describe_acls",
    "cluster.k30_create_acls",
    "cluster.k31_delete_acls",
    "configs.k32_describe_configs",
    "configs.k33_alter_configs",
    "cluster.k35_describe_log_dirs",
    "topics.k37_create_partitions",
    "groups.k42_delete_groups",
    "cluster.k43_elect_leaders",
    "configs.k44_incremental_alter_configs",
    "cluster.k46_list_partition_reassignments",
    "groups.k47_offset_delete",
    "configs.k48_describe_client_quotas",
    "configs.k49_alter_client_quotas",
    "cluster.k60_describe_cluster",
    "records.k61_describe_producers",
    "groups.k68_consumer_group_heartbeat",
    "groups.k69_consumer_group_describe",
    "configs.k74_list_config_resources",
    "topics.k75_describe_topic_partitions",
)


class Api:
    """One API: its key, the versions served, and what handles a request."""

    def __init__(self, module: str) -> None:
        self.key = int(module.split(".k")[1][:2])
        versions = schema_name_map[api_key_map[self.key]]
        self.min_version = min(versions)
        self.max_version = max(versions)
        self.advertised_min_version = 0 if self.key == PRODUCE_KEY else self.min_version
        self._module = module

    @cached_property
    def handle(self) -> Callable[[Call], None]:
        return cast("Callable[[Call], None]", import_module(f"conveyor.kafka_api.apis.{self._module}").handle)


APIS: dict[int, Api] = {api.key: api for api in map(Api, _MODULES)}


def load_all() -> None:
    """Load what handles each API. Takes a while: call it off the event loop."""
    for api in APIS.values():
        _ = api.handle
