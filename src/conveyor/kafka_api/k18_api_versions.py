"""ApiVersions (key 18): what this broker serves.

v3 names the client's software; v0 is the answer to a version that is not known (KIP-511), which lets a newer client
choose one that is.
"""

from typing import Any

from conveyor.kafka_api.call import Call

_UNSUPPORTED_VERSION = 35


def handle(call: Call) -> None:
    call.answer({"error_code": 0, "api_keys": _api_keys(), "finalized_features_epoch": -1})


def answer_unsupported(call: Call) -> None:
    """Answer in v0, with what is served."""
    call.answer({"error_code": _UNSUPPORTED_VERSION, "api_keys": _api_keys()})


def _api_keys() -> list[dict[str, Any]]:
    from conveyor.kafka_api.apis import APIS

    return [
        {"api_key": api.key, "min_version": api.min_version, "max_version": api.max_version} for api in APIS.values()
    ]
