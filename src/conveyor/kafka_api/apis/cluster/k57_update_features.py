"""UpdateFeatures (key 57): change the level of a feature (KIP-584).

v1 types of changes instead of `allow_downgrade`, and checks only · v2 one error for all features.

The level of the only feature cannot change. A request for the present level succeeds, and all others fail.
"""

from typing import Any

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.cluster.features import LEVEL, TRANSACTION_VERSION
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_UPGRADE_TYPES = 1
_UPGRADE, _UNSAFE_DOWNGRADE = 1, 3


def handle(call: KafkaCall) -> None:
    """Answer with the first error, as Kafka does: nothing is updated then."""
    updates = call.request.feature_updates
    error = next((error for error in (_error(call, update) for update in updates) if error is not None), None)
    updated = () if error is not None else updates
    results = [result_errors.fields(None) | {"feature": update.feature} for update in updated]
    call.answer(result_errors.fields(error) | {"results": results})


def _error(call: KafkaCall, update: Any) -> RequestError | None:
    if update.feature != TRANSACTION_VERSION:
        return _invalid(f"there is no feature '{update.feature}': the only one is {TRANSACTION_VERSION}")
    if call.header.api_version >= _UPGRADE_TYPES and not _UPGRADE <= update.upgrade_type <= _UNSAFE_DOWNGRADE:
        return _invalid(f"there is no upgrade type {update.upgrade_type}")
    if update.max_version_level != LEVEL:
        return _invalid(
            f"{TRANSACTION_VERSION} cannot become {update.max_version_level}: it is {LEVEL} and does not change"
        )
    return None


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_UPDATE_VERSION, message)
