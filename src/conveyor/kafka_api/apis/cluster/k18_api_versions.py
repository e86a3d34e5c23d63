"""ApiVersions (key 18): the APIs and versions of this broker.

v3 name and version of the client's software (KIP-511), features of the cluster (KIP-584) · v4 features from version 0
on · v5 the cluster and the broker that the client means to reach (KIP-1242). `KafkaConnection` itself answers
unsupported versions, in v0.
"""

import re
from typing import Any

from conveyor.kafka_api.apis.cluster.features import LEVEL, OLDEST_LEVEL, TRANSACTION_VERSION
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kafka_api.wire.versions import advertised_versions

_INVALID_REQUEST = 42
_REBOOTSTRAP_REQUIRED = 129
_SOFTWARE_FIELDS = 3
_FEATURES_FROM_ZERO = 4
_MEANT_BROKER = 5
_ANY_BROKER = -1
_SUPPORTED = {"name": TRANSACTION_VERSION, "min_version": OLDEST_LEVEL, "max_version": LEVEL}
_FINALIZED = {"name": TRANSACTION_VERSION, "min_version_level": LEVEL, "max_version_level": LEVEL}
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Source: KIP-511."""


def handle(call: KafkaCall) -> None:
    refusal = _refusal(call)
    if refusal:
        return call.answer({"error_code": refusal, "api_keys": [], "finalized_features_epoch": -1})
    answer: dict[str, Any] = {"error_code": 0, "api_keys": advertised_versions()}
    if call.header.api_version >= _SOFTWARE_FIELDS:
        answer |= {"finalized_features": [_FINALIZED], "finalized_features_epoch": call.broker.metadata.image.seq}
    if call.header.api_version >= _FEATURES_FROM_ZERO:
        answer |= {"supported_features": [_SUPPORTED]}
    call.answer(answer)


def _refusal(call: KafkaCall) -> int:
    """Return the error code of a request that is invalid or meant for another broker; 0 for the others."""
    request, version = call.request, call.header.api_version
    if version >= _SOFTWARE_FIELDS and not _names_software(request):
        return _INVALID_REQUEST
    if version >= _MEANT_BROKER and (request.cluster_id is None) != (request.node_id == _ANY_BROKER):
        return _INVALID_REQUEST
    if version >= _MEANT_BROKER and request.cluster_id is not None:
        meant = request.cluster_id, request.node_id
        if meant != (call.broker.metadata.image.cluster_id, call.broker.settings.broker.node_id):
            return _REBOOTSTRAP_REQUIRED
    return 0


def _names_software(request: Any) -> bool:
    software = (request.client_software_name, request.client_software_version)
    return all(_SOFTWARE.fullmatch(text) for text in software)
