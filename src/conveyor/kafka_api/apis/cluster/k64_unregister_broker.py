"""UnregisterBroker (key 64): remove a broker that is stopped forever (KIP-500).

Unlike Kafka, the broker refuses to remove one that is live or holds replicas.
"""

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError


def handle(call: KafkaCall) -> None:
    call.start(_unregister(call))


async def _unregister(call: KafkaCall) -> None:
    error = None
    try:
        await call.broker.topics.operations.remove_broker(call.caller, call.request.broker_id)
    except RequestError as failure:
        error = failure.detached()
    call.answer(result_errors.fields(error))
