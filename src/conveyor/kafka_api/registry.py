"""The handler of each API, by API key. The server passes this table to its connections.

A handler takes a decoded request and answers it, at once or later. `wire/versions.py` lists the versions of each API.
"""

from conveyor.broker.broker_node import BrokerNode
from conveyor.kafka_api.access.gate import guarded
from conveyor.kafka_api.apis.cluster import (
    k18_api_versions,
    k34_alter_replica_log_dirs,
    k35_describe_log_dirs,
    k43_elect_leaders,
    k45_alter_partition_reassignments,
    k46_list_partition_reassignments,
    k55_describe_quorum,
    k57_update_features,
    k60_describe_cluster,
    k64_unregister_broker,
)
from conveyor.kafka_api.apis.configs import (
    k32_describe_configs,
    k33_alter_configs,
    k44_incremental_alter_configs,
    k48_describe_client_quotas,
    k49_alter_client_quotas,
    k74_list_config_resources,
)
from conveyor.kafka_api.apis.groups import (
    k08_offset_commit,
    k09_offset_fetch,
    k10_find_coordinator,
    k11_join_group,
    k12_heartbeat,
    k13_leave_group,
    k14_sync_group,
    k15_describe_groups,
    k16_list_groups,
    k42_delete_groups,
    k47_offset_delete,
    k68_consumer_group_heartbeat,
    k69_consumer_group_describe,
)
from conveyor.kafka_api.apis.records import (
    k00_produce,
    k01_fetch,
    k02_list_offsets,
    k21_delete_records,
    k23_offset_for_leader_epoch,
    k61_describe_producers,
)
from conveyor.kafka_api.apis.topics import (
    k03_metadata,
    k19_create_topics,
    k20_delete_topics,
    k37_create_partitions,
    k75_describe_topic_partitions,
)
from conveyor.kafka_api.apis.transactions import (
    k22_init_producer_id,
    k24_add_partitions_to_txn,
    k25_add_offsets_to_txn,
    k26_end_txn,
    k27_write_txn_markers,
    k28_txn_offset_commit,
    k65_describe_transactions,
    k66_list_transactions,
)
from conveyor.kafka_api.apis.users import (
    k17_sasl_handshake,
    k29_describe_acls,
    k30_create_acls,
    k31_delete_acls,
    k36_sasl_authenticate,
    k50_describe_user_scram_credentials,
    k51_alter_user_scram_credentials,
)
from conveyor.kafka_api.wire.call import Handler
from conveyor.kafka_api.wire.versions import SERVED_APIS

HANDLERS: dict[int, Handler] = {
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
    17: k17_sasl_handshake.handle,
    18: k18_api_versions.handle,
    19: k19_create_topics.handle,
    20: k20_delete_topics.handle,
    21: k21_delete_records.handle,
    22: k22_init_producer_id.handle,
    23: k23_offset_for_leader_epoch.handle,
    24: k24_add_partitions_to_txn.handle,
    25: k25_add_offsets_to_txn.handle,
    26: k26_end_txn.handle,
    27: k27_write_txn_markers.handle,
    28: k28_txn_offset_commit.handle,
    29: k29_describe_acls.handle,
    30: k30_create_acls.handle,
    31: k31_delete_acls.handle,
    32: k32_describe_configs.handle,
    33: k33_alter_configs.handle,
    34: k34_alter_replica_log_dirs.handle,
    35: k35_describe_log_dirs.handle,
    36: k36_sasl_authenticate.handle,
    37: k37_create_partitions.handle,
    42: k42_delete_groups.handle,
    43: k43_elect_leaders.handle,
    44: k44_incremental_alter_configs.handle,
    45: k45_alter_partition_reassignments.handle,
    46: k46_list_partition_reassignments.handle,
    47: k47_offset_delete.handle,
    48: k48_describe_client_quotas.handle,
    49: k49_alter_client_quotas.handle,
    50: k50_describe_user_scram_credentials.handle,
    51: k51_alter_user_scram_credentials.handle,
    55: k55_describe_quorum.handle,
    57: k57_update_features.handle,
    60: k60_describe_cluster.handle,
    61: k61_describe_producers.handle,
    64: k64_unregister_broker.handle,
    65: k65_describe_transactions.handle,
    66: k66_list_transactions.handle,
    68: k68_consumer_group_heartbeat.handle,
    69: k69_consumer_group_describe.handle,
    74: k74_list_config_resources.handle,
    75: k75_describe_topic_partitions.handle,
}

assert HANDLERS.keys() == SERVED_APIS.keys(), "the APIs with a handler are exactly the advertised ones"

_GUARDED = {key: guarded(SERVED_APIS[key], handle) for key, handle in HANDLERS.items()}


def handlers(broker: BrokerNode) -> dict[int, Handler]:
    """Return the handlers for a broker's clients: those that look at ACLs, if there are any."""
    return HANDLERS if broker.clients.access.rules is None else _GUARDED
