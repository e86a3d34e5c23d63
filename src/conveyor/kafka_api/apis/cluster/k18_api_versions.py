"""ApiVersions (key 18): the APIs and versions of this broker.

v3 name and version of the client's software (KIP-511), features of the cluster (KIP-584) · v4 features from version 0
on. `KafkaConnection` itself answers unsupported versions, in v0.

The only feature is the version of transactions. All brokers have it, so it is always at its newest version.
"""

import re
from typing import Any

from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kafka_api.wire.versions import advertised_versions
from conveyor.transactions.transaction_value import EPOCH_BUMPING_VERSION

_INVALID_REQUEST = 42
_SOFTWARE_FIELDS = 3
_FEATURES_FROM_ZERO = 4
_SUPPORTED = {"name": "transaction.version", "min_version": 0, "max_version": EPOCH_BUMPING_VERSION}
_FINALIZED = {
    "name": "transaction.version",
    "min_version_level": EPOCH_BUMPING_VERSION,
    "max_version_level": EPOCH_BUMPING_VERSION,
}
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Source: KIP-511."""


def handle(call: KafkaCall) -> None:
    if call.api_version >= _SOFTWARE_FIELDS and not _names_software(call.request):
        return call.answer({"error_code": _INVALID_REQUEST, "api_keys": [], "finalized_features_epoch": -1})
    answer: dict[str, Any] = {"error_code": 0, "api_keys": advertised_versions()}
    if call.api_version >= _SOFTWARE_FIELDS:
        answer |= {"finalized_features": [_FINALIZED], "finalized_features_epoch": call.broker.metadata.image.seq}
    if call.api_version >= _FEATURES_FROM_ZERO:
        answer |= {"supported_features": [_SUPPORTED]}
    call.answer(answer)


def _names_software(request: Any) -> bool:
    software = (request.client_software_name, request.client_software_version)
    return all(_SOFTWARE.fullmatch(text) for text in software)
