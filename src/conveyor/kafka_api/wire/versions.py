"""The APIs that this broker serves and advertises: `_NEWEST` lists them.

Each is served from the oldest version that kio supports to the newest one that its handler and kio have in common.

Produce is served from version 3 on but, as in Kafka (KAFKA-18659), advertised from version 0 on: before 2.9, librdkafka
concludes from missing old versions that the broker supports neither gzip, snappy nor lz4, and does not compress.
"""

from dataclasses import dataclass
from typing import Any

from kio.schema.index import api_key_map, schema_name_map

PRODUCE_KEY, FETCH_KEY, API_VERSIONS_KEY = 0, 1, 18

_NEWEST = {
    0: 13, 1: 18, 2: 11, 3: 13, 8: 10, 9: 10, 10: 6, 11: 9, 12: 4, 13: 5, 14: 5, 15: 6, 16: 5, 18: 5, 19: 7, 20: 6,
    21: 2, 22: 6, 23: 4, 24: 3, 25: 4, 26: 5, 27: 2, 28: 6, 29: 3, 30: 3, 31: 3, 32: 4, 33: 2, 34: 2, 35: 5, 37: 3,
    42: 2, 43: 2, 44: 1, 45: 1, 46: 0, 47: 0, 48: 1, 49: 1, 55: 2, 57: 2, 60: 2, 61: 0, 64: 0, 65: 0, 66: 1, 68: 1,
    69: 1, 74: 1, 75: 0,
}  # fmt: skip
"""The newest version of each API that its handler implements. AddPartitionsToTxn from v4 on is for brokers, and
ListTransactions v2 has patterns, which are not served yet. kio 0.6.5 has no ApiVersions v5 and no TxnOffsetCommit v6.
"""

_OVERLAPS = {PRODUCE_KEY: frozenset({PRODUCE_KEY, FETCH_KEY}), FETCH_KEY: frozenset({FETCH_KEY})}
"""The APIs whose unanswered requests do not delay a later request of this API on the same connection.

All other requests wait, as in Kafka, until the earlier ones are answered, so every request sees the effects of those
before it. Produce may overlap because partitions append in the order of the requests, and Fetch because it has no
effect. The relation is transitive: a request that may overlap with the last started one may overlap with all.
"""

assert all(_OVERLAPS[earlier] <= overlaps for overlaps in _OVERLAPS.values() for earlier in overlaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """One API and its served versions. overlaps: see `_OVERLAPS`."""

    key: int
    versions: range
    advertised_min_version: int
    overlaps: frozenset[int]

    @property
    def min_version(self) -> int:
        return self.versions[0]

    @property
    def max_version(self) -> int:
        return self.versions[-1]


def _served(key: int, newest: int) -> ServedApi:
    kio_versions = schema_name_map[api_key_map[key]]
    versions = range(min(kio_versions), min(newest, max(kio_versions)) + 1)
    return ServedApi(
        key=key,
        versions=versions,
        advertised_min_version=0 if key == PRODUCE_KEY else versions[0],
        overlaps=_OVERLAPS.get(key, frozenset()),
    )


SERVED_APIS: dict[int, ServedApi] = {key: _served(key, newest) for key, newest in _NEWEST.items()}


def advertised_versions() -> list[dict[str, Any]]:
    """Return the field `api_keys` of the ApiVersions response: every API with its advertised versions."""
    return [advertised(api) for api in SERVED_APIS.values()]


def advertised(api: ServedApi) -> dict[str, Any]:
    """Return an API's entry in the field `api_keys`."""
    return {"api_key": api.key, "min_version": api.advertised_min_version, "max_version": api.max_version}


def unsupported_version_reason(api: ServedApi, version: int) -> str:
    """Return the reason for closing the connection of a client that requested an unsupported version."""
    served = f"api key {api.key} version {version}: versions {api.min_version} to {api.max_version} are served"
    if version >= api.min_version:
        return served
    if api.key in (PRODUCE_KEY, FETCH_KEY):
        return f"{served}; message formats 0 and 1 are not supported: use a client of Kafka 0.11 or newer"
    return f"{served}; the client is too old: use producers and consumers of Kafka 0.11 or newer, tools of 2.0 or newer"
