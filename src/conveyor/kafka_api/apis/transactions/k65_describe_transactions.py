"""DescribeTransactions (key 65): the state of transactional ids that this broker coordinates (KIP-664)."""

from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from conveyor.broker.slices import SLICE_ITEMS
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.transactions.transaction_commands import DescribeTransaction
from conveyor.transactions.transaction_replies import TransactionDescription

_PARTITION_BYTES = 1_000
"""Memory of a partition in an answer, which may be the only one of its topic."""
_EPOCH = datetime.fromtimestamp(0, UTC)
_FAILED: dict[str, Any] = {
    "transaction_state": "",
    "transaction_timeout": 0,
    "transaction_start_time": _EPOCH,
    "producer_id": 0,
    "producer_epoch": 0,
    "topics": [],
}


def handle(call: KafkaCall) -> None:
    call.start(_describe(call))


async def _describe(call: KafkaCall) -> None:
    states, count = [], 0
    for transactional_id in call.request.transactional_ids:
        state = await _state(call, transactional_id)
        states.append(state)
        partitions = sum([len(topic["partitions"]) for topic in state["topics"]])
        count += partitions
        call.weigh(partitions * _PARTITION_BYTES)
        if partitions > SLICE_ITEMS:
            await call.broker.slices.turn()
    call.answer({"transaction_states": states}, count)


async def _state(call: KafkaCall, transactional_id: str) -> dict[str, Any]:
    state: dict[str, Any] = {"transactional_id": transactional_id}
    try:
        described = await call.broker.coordinators.transactions.ask(
            call.caller, DescribeTransaction(transactional_id=transactional_id)
        )
    except RequestError as error:
        return state | _FAILED | {"error_code": result_errors.code(error)}
    return state | _fields(described) | {"error_code": result_errors.NONE}


def _fields(described: TransactionDescription) -> dict[str, Any]:
    return {
        "transaction_state": described.state.kafka_name,
        "transaction_timeout": described.timeout_ms,
        "transaction_start_time": _EPOCH + timedelta(milliseconds=described.start_ms),
        "producer_id": described.producer.producer_id,
        "producer_epoch": described.producer.producer_epoch,
        "topics": [
            {"topic": topic, "partitions": [partition.partition for partition in partitions]}
            for topic, partitions in groupby(described.partitions, _topic)
        ],
    }


def _topic(partition: TopicPartition) -> str:
    return partition.topic
