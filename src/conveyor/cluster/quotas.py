"""Client quotas: the rate limits of clients. Immutable; a change creates a new value. Source: KIP-13, KIP-55, KIP-546,
KIP-599, KIP-612.

An entity is a user, a client id, a client id of a user, or an IP address. A name of None is the default entity, which
applies to all clients without a named entity of that kind. For each quota key separately, the first of these entities
with a value applies:

    user and client id          default user and client id            client id
    user and default client id  default user and default client id    default client id
    user                        default user

All clients of a user share the rate of a user quota, all clients with a client id that of a client id quota, and all
clients with the same user and client id that of a quota for both.

The metadata holds the values of each entity. Logs show an entity as text: `client-id=app,user` is the client id "app"
of the default user.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from ipaddress import ip_address
from math import isfinite
from types import MappingProxyType
from urllib.parse import quote

import msgspec

from conveyor.kernel.errors import ErrorKind, RequestError

USER, CLIENT_ID, IP = "user", "client-id", "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

QuotaEntity = tuple[tuple[str, str | None], ...]
"""(type, name) pairs in the order of their types; a name of None is the default."""

RateKey = tuple[str, str | None, str | None]
"""The clients that share a rate: quota key, user, client id (or address); None for a part that does not apply."""

_CLIENT_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_FRACTIONAL_KEYS = (REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_IP_KEYS = (CONNECTION_CREATION_RATE,)
_TYPES = ((USER,), (CLIENT_ID,), (CLIENT_ID, USER), (IP,))
MAX_PARTS = max(map(len, _TYPES))
"""The most (type, name) pairs of an entity."""
MAX_CLIENT_ID = 255
"""The characters of a client id that count. Clients choose their ids, and rates and leases keep them."""
_WHOLE_EPSILON = 1e-6
_UNLIMITED = float(1 << 63)
"""Clients state no limit as the largest number of their language, whose products are infinite."""


class QuotaChange(msgspec.Struct, frozen=True, kw_only=True):
    """A new value for one key of an entity.

    `value`: per second, in bytes, percent of the event loop, partitions or connections. None removes it.
    """

    key: str
    value: float | None


class Match(Enum):
    """The ways in which a filter matches names of one entity type."""

    EXACT = auto()
    DEFAULT = auto()
    ANY = auto()


class QuotaFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Matches entities that have this type with a matching name. `name` is for EXACT only."""

    entity_type: str
    match: Match
    name: str | None = None


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of a client, and the key of the rate that it shares."""

    per_second: float
    rate_key: RateKey


class ClientQuotas(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of all quotas."""

    entities: Mapping[QuotaEntity, Mapping[str, float]] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    by_key: Mapping[str, Mapping[QuotaEntity, float]] = msgspec.field(default_factory=lambda: MappingProxyType({}))

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Return the limit of a client, or None. An id longer than MAX_CLIENT_ID counts as its beginning."""
        values = self.by_key.get(key)
        if values:
            for entity, shared_user, shared_client_id in _candidates(user, client_id[:MAX_CLIENT_ID]):
                value = values.get(entity)
                if value is not None:
                    return Limit(per_second=value, rate_key=(key, shared_user, shared_client_id))
        return None

    def connection_limit(self, address: str) -> Limit | None:
        """Return the limit for new connections from an address, or None."""
        values = self.by_key.get(CONNECTION_CREATION_RATE, {})
        value = values.get(((IP, address),), values.get(((IP, None),)))
        return None if value is None else Limit(per_second=value, rate_key=(CONNECTION_CREATION_RATE, None, address))

    def matching(self, filters: Sequence[QuotaFilter], *, strict: bool) -> list[QuotaEntity]:
        """Return the entities that match every filter, sorted. strict: they must have no other type. Raises
        RequestError.

        Without filters: all entities, or none if strict, as in Kafka.
        """
        _check_filters(filters)
        matching = [entity for entity in self.entities if _matches(dict(entity), filters, strict)]
        return sorted(matching, key=entity_text)


def from_entities(entities: Mapping[QuotaEntity, Mapping[str, float]]) -> ClientQuotas:
    by_key: dict[str, dict[QuotaEntity, float]] = {}
    for entity, values in entities.items():
        counted = tuple((kind, name and name[:MAX_CLIENT_ID] if kind == CLIENT_ID else name) for kind, name in entity)
        for key, value in values.items():
            by_key.setdefault(key, {})[counted] = min(value, _UNLIMITED)
    return ClientQuotas(entities=MappingProxyType(dict(entities)), by_key=MappingProxyType(by_key))


def checked_entity(parts: Collection[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity with these (type, name) pairs. Raises RequestError (INVALID_REQUEST)."""
    types = tuple(sorted(kind for kind, _ in parts))
    if types not in _TYPES:
        raise _invalid(
            f"quotas are for '{USER}', '{CLIENT_ID}', both, or '{IP}', each named once, not for '{' '.join(types)}'"
        )
    if any(name == "" for _, name in parts):
        raise _invalid("an entity name is empty: use null for the default entity")
    return tuple(sorted((kind, _address(name) if kind == IP else name) for kind, name in parts))


def changed_values(
    entity: QuotaEntity, present: Mapping[str, float], changes: Sequence[QuotaChange]
) -> dict[str, float]:
    """Return an entity's values after changes. Raises RequestError (INVALID_REQUEST)."""
    keys = [change.key for change in changes]
    if len(set(keys)) < len(keys):
        raise _invalid("one entry changes a quota twice")
    values = dict(present)
    for change in changes:
        if change.value is None:
            values.pop(change.key, None)
        else:
            values[change.key] = _checked_value(entity, change.key, change.value)
    return values


def entity_text(entity: QuotaEntity) -> str:
    """Return an entity as text, such as `client-id=app,user`, for logs and for sorting."""
    return ",".join(kind if name is None else f"{kind}={quote(name, safe='')}" for kind, name in entity)


@lru_cache(maxsize=1024)
def _candidates(user: str, client_id: str) -> tuple[tuple[QuotaEntity, str | None, str | None], ...]:
    """Return the entities that may apply to a client, in precedence order, each with the user and client id of its
    rate key.
    """
    named_id, default_id = (CLIENT_ID, client_id), (CLIENT_ID, None)
    named_user, default_user = (USER, user), (USER, None)
    return (
        ((named_id, named_user), user, client_id),
        ((default_id, named_user), user, client_id),
        ((named_user,), user, None),
        ((named_id, default_user), user, client_id),
        ((default_id, default_user), user, client_id),
        ((default_user,), user, None),
        ((named_id,), None, client_id),
        ((default_id,), None, client_id),
    )


def _check_filters(filters: Sequence[QuotaFilter]) -> None:
    types = [rule.entity_type for rule in filters]
    unknown = set(types) - {USER, CLIENT_ID, IP}
    if unknown:
        raise RequestError(ErrorKind.UNSUPPORTED_VERSION, f"quotas for entity type '{min(unknown)}' are not supported")
    if len(set(types)) < len(types):
        raise _invalid("two filters have the same entity type")
    if IP in types and len(types) > 1:
        raise _invalid(f"a filter for '{IP}' cannot be combined with other entity types")
    for rule in filters:
        if (rule.match is Match.EXACT) != (rule.name is not None):
            raise _invalid(
                f"the filter for '{rule.entity_type}' needs a name for an exact match, and must have none otherwise"
            )


def _matches(names: Mapping[str, str | None], filters: Sequence[QuotaFilter], strict: bool) -> bool:
    if strict and (not filters or len(names) != len(filters)):
        return False
    return all(
        rule.entity_type in names and (rule.match is Match.ANY or names[rule.entity_type] == rule.name)
        for rule in filters
    )


def _checked_value(entity: QuotaEntity, key: str, value: float) -> float:
    keys = _IP_KEYS if entity[0][0] == IP else _CLIENT_KEYS
    if key not in keys:
        raise _invalid(f"quota '{key}' is not supported for '{entity[0][0]}': use one of {', '.join(keys)}")
    if not isfinite(value) or value <= 0:
        raise _invalid(f"quota '{key}' is {value}: it must be more than 0; remove it for no limit")
    if key not in _FRACTIONAL_KEYS and abs(value - round(value)) > _WHOLE_EPSILON:
        raise _invalid(f"quota '{key}' is {value}: it must be a whole number")
    return value


def _address(name: str | None) -> str | None:
    try:
        return None if name is None else str(ip_address(name))
    except ValueError as error:
        raise _invalid(f"'{name}' is not an IP address") from error


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_REQUEST, message)
