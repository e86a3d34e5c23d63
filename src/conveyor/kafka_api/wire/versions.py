"""The APIs that this broker serves and the versions of each: all that kio knows. An API that is not listed here is not
advertised.

Produce is advertised from version 0 on, as Kafka does (KAFKA-18659), though it is served from 3 on: librdkafka before
2.9 takes a broker without it for one that knows neither gzip, snappy nor lz4, and sends records uncompressed instead.
"""

from dataclasses import dataclass
from typing import Any

from kio.schema.index import api_key_map, schema_name_map

PRODUCE_KEY, FETCH_KEY, API_VERSIONS_KEY = 0, 1, 18

_SERVED_KEYS = (
    0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 29, 30, 31, 32, 33, 35, 37, 42, 43, 44, 46,
    47, 48, 49, 60, 61, 68, 69, 74, 75,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """One API and the versions of it that are served."""

    key: int
    versions: range
    advertised_min_version: int

    @property
    def min_version(self) -> int:
        return self.versions[0]

    @property
    def max_version(self) -> int:
        return self.versions[-1]


def _served(key: int) -> ServedApi:
    known = schema_name_map[api_key_map[key]]
    versions = range(min(known), max(known) + 1)
    return ServedApi(key=key, versions=versions, advertised_min_version=0 if key == PRODUCE_KEY else versions[0])


SERVED_APIS: dict[int, ServedApi] = {key: _served(key) for key in _SERVED_KEYS}


def advertised_versions() -> list[dict[str, Any]]:
    """The field `api_keys` of the response to ApiVersions: every API with the versions that clients may use."""
    return [
        {"api_key": api.key, "min_version": api.advertised_min_version, "max_version": api.max_version}
        for api in SERVED_APIS.values()
    ]


def why_not_served(api: ServedApi, version: int) -> str:
    """What the log says when a connection is closed because its client asked for a version that is not served."""
    served = f"api key {api.key} version {version}: versions {api.min_version} to {api.max_version} are served"
    if version >= api.min_version:
        return served
    if api.key in (PRODUCE_KEY, FETCH_KEY):
        return f"{served}; message formats 0 and 1 are not taken: use a client of Kafka 0.11 or newer"
    return f"{served}; the client is too old: Kafka's producers and consumers work since 0.11, its tools since 2.0"
