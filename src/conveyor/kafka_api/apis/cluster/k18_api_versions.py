"""ApiVersions (key 18): the APIs and versions of this broker.

v3 name and version of the client's software (KIP-511). `KafkaConnection` itself answers unsupported versions, in v0.
"""

import re
from typing import Any

from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kafka_api.wire.versions import advertised_versions

_INVALID_REQUEST = 42
_SOFTWARE_FIELDS = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Source: KIP-511."""


def handle(call: KafkaCall) -> None:
    if call.api_version >= _SOFTWARE_FIELDS and not _names_software(call.request):
        return call.answer({"error_code": _INVALID_REQUEST, "api_keys": [], "finalized_features_epoch": -1})
    call.answer({"error_code": 0, "api_keys": advertised_versions(), "finalized_features_epoch": -1})


def _names_software(request: Any) -> bool:
    software = (request.client_software_name, request.client_software_version)
    return all(_SOFTWARE.fullmatch(text) for text in software)
