"""ApiVersions (key 18): what this broker serves.

v3 names the client's software; v0 is the answer to a version that is not known (KIP-511), which lets a newer client
choose one that is. What is advertised is served, but for the oldest versions of Produce: see `apis`.
"""

import re
from typing import Any

from conveyor.kafka_api.wire.call import Call

_INVALID_REQUEST = 42
_UNSUPPORTED_VERSION = 35
_NAMES_SOFTWARE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Source: KIP-511."""


def handle(call: Call) -> None:
    if call.api_version >= _NAMES_SOFTWARE and not _names_software(call.request):
        return call.answer({"error_code": _INVALID_REQUEST, "api_keys": [], "finalized_features_epoch": -1})
    call.answer({"error_code": 0, "api_keys": _api_keys(), "finalized_features_epoch": -1})


def _names_software(request: Any) -> bool:
    named = (request.client_software_name, request.client_software_version)
    return all(_SOFTWARE.fullmatch(each) for each in named)


def answer_unsupported(call: Call) -> None:
    """Answer in v0, with what is served."""
    call.answer({"error_code": _UNSUPPORTED_VERSION, "api_keys": _api_keys()})


def _api_keys() -> list[dict[str, Any]]:
    from conveyor.kafka_api.registry import APIS

    return [
        {"api_key": api.key, "min_version": api.advertised_min_version, "max_version": api.max_version}
        for api in APIS.values()
    ]
