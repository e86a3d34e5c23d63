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

from conveyor.kafka_api.call import Call

PRODUCE_KEY, FETCH_KEY, API_VERSIONS_KEY = 0, 1, 18

_MODULES = (
    "k00_produce",
    "k01_fetch",
    "k02_list_offsets",
    "k03_metadata",
    "k08_offset_commit",
    "k09_offset_fetch",
    "k10_find_coordinator",
    "k11_join_group",
    "k12_heartbeat",
    "k13_leave_group",
    "k14_sync_group",
    "k15_describe_groups",
    "k16_list_groups",
    "k18_api_versions",
    "k19_create_topics",
    "k20_delete_topics",
    "k21_delete_records",
    "k22_init_producer_id",
    "k23_offset_for_leader_epoch",
    "k29_describe_acls",
    "k30_create_acls",
    "k31_delete_acls",
    "k32_describe_configs",
    "k33_alter_configs",
    "k35_describe_log_dirs",
    "k37_create_partitions",
    "k42_delete_groups",
    "k43_elect_leaders",
    "k44_incremental_alter_configs",
    "k46_list_partition_reassignments",
    "k47_offset_delete",
    "k48_describe_client_quotas",
    "k49_alter_client_quotas",
    "k60_describe_cluster",
    "k61_describe_producers",
    "k68_consumer_group_heartbeat",
    "k69_consumer_group_describe",
    "k74_list_config_resources",
    "k75_describe_topic_partitions",
)


class Api:
    """One API: its key, the versions served, and what handles a request."""

    def __init__(self, module: str) -> None:
        self.key = int(module[1:3])
        versions = schema_name_map[api_key_map[self.key]]
        self.min_version = min(versions)
        self.max_version = max(versions)
        self.advertised_min_version = 0 if self.key == PRODUCE_KEY else self.min_version
        self._module = module

    @cached_property
    def handle(self) -> Callable[[Call], None]:
        return cast("Callable[[Call], None]", import_module(f"conveyor.kafka_api.{self._module}").handle)


APIS: dict[int, Api] = {api.key: api for api in map(Api, _MODULES)}


def load_all() -> None:
    """Load what handles each API. Takes a while: call it off the event loop."""
    for api in APIS.values():
        _ = api.handle
