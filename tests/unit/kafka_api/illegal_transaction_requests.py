"""Invalid requests about transactions: AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn,
WriteTxnMarkers, DescribeTransactions, ListTransactions.

Source: Kafka's KafkaApis and TransactionCoordinator.
"""

from typing import Any

from kio.schema.errors import ErrorCode as E

from tests.unit.kafka_api.illegal_row import Row, Values

OF_BROKER = "__rest.0.0.0"
_RESERVED = E.transactional_id_authorization_failed


def end_txn(transactional_id: str) -> Values:
    return {"transactional_id": transactional_id, "producer_id": 5, "producer_epoch": 0, "committed": True}


def add_partitions(topic: str, partition: int = 0, transactional_id: str = "x") -> dict[str, Any]:
    producer = {"v3_and_below_producer_id": 5, "v3_and_below_producer_epoch": 0}
    topics = [{"name": topic, "partitions": (partition,)}]
    return producer | {"v3_and_below_transactional_id": transactional_id, "v3_and_below_topics": topics}


def markers(topic: str, **fields: int) -> Values:
    marker = {"producer_id": 5, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    return {"markers": [marker | {"topics": [{"name": topic, "partition_indexes": (0,)}]} | fields]}


def offsets(**fields: object) -> Values:
    producer = {"transactional_id": "x", "producer_id": 5, "producer_epoch": 0, "group_id": "g"}
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
    return producer | {"topics": [{"name": "t", "partitions": [partition]}]} | fields


ROWS = [
    Row(25, (0, 4), "no coordinator", offsets(), E.not_coordinator),
    Row(28, (0, 4), "no producer has the transactional id", offsets(), E.invalid_producer_id_mapping),
    Row(26, (0, 4), "no coordinator", end_txn("x"), E.not_coordinator),
    Row(26, (0, 5), "the broker's own id", end_txn(OF_BROKER), _RESERVED),
    Row(25, (0, 4), "the broker's own id", offsets(transactional_id=OF_BROKER), _RESERVED),
    Row(28, (0, 4), "the broker's own id", offsets(transactional_id=OF_BROKER), _RESERVED),
    Row(
        24,
        (0, 3),
        "the broker's own id",
        add_partitions("t", transactional_id=OF_BROKER),
        _RESERVED,
    ),
    Row(65, (0,), "no coordinator", {"transactional_ids": ("x",)}, E.not_coordinator),
    Row(66, (0, 1), "an unknown state", {"state_filters": ("Nothing",), "producer_id_filters": ()}, E.none),
    Row(24, (0, 3), "no coordinator", add_partitions("t"), E.not_coordinator),
    Row(24, (0, 3), "an unknown topic", add_partitions("nothing"), E.unknown_topic_or_partition),
    Row(24, (3,), "a negative partition", add_partitions("t", -1), E.unknown_topic_or_partition),
    Row(24, (3,), "the broker's own topic", add_partitions("__consumer_offsets"), E.invalid_topic_exception),
    Row(27, (1, 2), "an unknown topic", markers("nothing"), E.unknown_topic_or_partition),
    Row(27, (1, 2), "the broker's own topic", markers("__transaction_state"), E.invalid_topic_exception),
    Row(27, (1, 2), "no producer", markers("t", producer_id=-1), E.invalid_request),
    Row(27, (1, 2), "no epoch", markers("t", producer_epoch=-1), E.invalid_request),
    Row(27, (1, 2), "no coordinator epoch", markers("t", coordinator_epoch=-1), E.invalid_request),
    Row(27, (1, 2), "an epoch that no coordinator has had", markers("t", coordinator_epoch=99), E.invalid_request),
]
