"""Client quotas: who may use how much. Immutable; a change makes a new one. Source: KIP-13, KIP-55, KIP-546, KIP-599,
KIP-612.

An entity is a user, a client id, a user's client id, or an address. A name of None is the default: it holds for
whoever has no quota of that kind by name. For each key by itself, a client is under the first of these that has it:

    user and client id          default user and client id            client id
    user and default client id  default user and default client id    default client id
    user                        default user

Who is under a user's quota shares one rate with all clients of that user, who is under a client id's with all clients
of that id, else with those of the same user and client id.

In the metadata tree an entity is one node. `/quotas/client-id=app,user` is the client id "app" of the default user:

    {"producer_byte_rate": 1048576.0, "request_percentage": 50.0}
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from ipaddress import ip_address
from math import isfinite
from types import MappingProxyType
from urllib.parse import quote, unquote

from conveyor.kernel.errors import ErrorKind, RequestError

QUOTAS_PATH = "/quotas"
USER, CLIENT_ID, IP = "user", "client-id", "ip"
ANONYMOUS = "ANONYMOUS"
"""The user of a connection that is not authenticated."""

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

QuotaEntity = tuple[tuple[str, str | None], ...]
"""(type, name) pairs in the order of their types; a name of None is the default."""

RateKey = tuple[str, str | None, str | None]
"""Who shares a rate: key of the quota, user, client id (or address); None where all of them share it."""

_CLIENT_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_FRACTIONAL_KEYS = (REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_IP_KEYS = (CONNECTION_CREATION_RATE,)
_TYPES = ((USER,), (CLIENT_ID,), (CLIENT_ID, USER), (IP,))
_WHOLE_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """One key of an entity. `value`: per second, in bytes, percent of the event loop, partitions or connections.

    None removes it.
    """

    key: str
    value: float | None


class Match(Enum):
    """How a filter looks at names of one type."""

    EXACT = auto()
    DEFAULT = auto()
    ANY = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFilter:
    """Entities that have this type, with a name that matches. `name` is for EXACT only."""

    entity_type: str
    match: Match
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What holds for a client, and with whom it shares it."""

    per_second: float
    rate_key: RateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotas:
    """All quotas, as they were at one moment."""

    entities: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    by_key: Mapping[str, Mapping[QuotaEntity, float]] = field(default_factory=lambda: MappingProxyType({}))

    def with_entity(self, entity: QuotaEntity, values: Mapping[str, float]) -> "ClientQuotas":
        """These quotas with one entity's replaced; without values it is gone."""
        rest = {each: present for each, present in self.entities.items() if each != entity}
        return from_entities({**rest, entity: values} if values else rest)

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """What holds for a client; None for no limit."""
        values = self.by_key.get(key)
        if values:
            for entity, shared_user, shared_client_id in _candidates(user, client_id):
                value = values.get(entity)
                if value is not None:
                    return Limit(per_second=value, rate_key=(key, shared_user, shared_client_id))
        return None

    def connection_limit(self, address: str) -> Limit | None:
        """What holds for new connections from an address; None for no limit."""
        values = self.by_key.get(CONNECTION_CREATION_RATE, {})
        value = values.get(((IP, address),), values.get(((IP, None),)))
        return None if value is None else Limit(per_second=value, rate_key=(CONNECTION_CREATION_RATE, None, address))

    def matching(self, filters: Sequence[QuotaFilter], *, strict: bool) -> list[QuotaEntity]:
        """Entities that match every filter, in order. strict: and that have no other type. Raises RequestError.

        Without a filter that is every entity, or none if it is strict, as Kafka has it.
        """
        _check_filters(filters)
        found = [each for each in self.entities if _matches(dict(each), filters, strict)]
        return sorted(found, key=entity_path)


def from_entities(entities: Mapping[QuotaEntity, Mapping[str, float]]) -> ClientQuotas:
    by_key: dict[str, dict[QuotaEntity, float]] = {}
    for entity, values in entities.items():
        for key, value in values.items():
            by_key.setdefault(key, {})[entity] = value
    return ClientQuotas(entities=MappingProxyType(dict(entities)), by_key=MappingProxyType(by_key))


def checked_entity(parts: Collection[tuple[str, str | None]]) -> QuotaEntity:
    """The entity with these (type, name) pairs. Raises RequestError (INVALID_REQUEST)."""
    types = tuple(sorted(kind for kind, _ in parts))
    if types not in _TYPES:
        raise _invalid(
            f"quotas are for '{USER}', '{CLIENT_ID}', both, or '{IP}', each named once, not for '{' '.join(types)}'"
        )
    if any(name == "" for _, name in parts):
        raise _invalid("a name is empty: the default is asked for with null")
    return tuple(sorted((kind, _address(name) if kind == IP else name) for kind, name in parts))


def changed_values(
    entity: QuotaEntity, present: Mapping[str, float], changes: Sequence[QuotaChange]
) -> dict[str, float]:
    """An entity's values after some changes. Raises RequestError (INVALID_REQUEST)."""
    keys = [change.key for change in changes]
    if len(set(keys)) < len(keys):
        raise _invalid("a quota is changed twice in one entry")
    values = dict(present)
    for change in changes:
        if change.value is None:
            values.pop(change.key, None)
        else:
            values[change.key] = _checked_value(entity, change.key, change.value)
    return values


def entity_path(entity: QuotaEntity) -> str:
    """Where an entity lies in the metadata tree."""
    names = [kind if name is None else f"{kind}={quote(name, safe='')}" for kind, name in entity]
    return f"{QUOTAS_PATH}/{','.join(names)}"


def decode_entity(path: str) -> QuotaEntity:
    """The entity of a node."""
    parts = (each.partition("=") for each in path.rpartition("/")[2].split(","))
    return tuple((kind, unquote(name) if named else None) for kind, named, name in parts)


def encode_values(values: Mapping[str, float]) -> bytes:
    """A node's content."""
    return json.dumps(dict(values)).encode()


def decode_values(content: bytes) -> dict[str, float]:
    """The values in a node."""
    return {key: float(value) for key, value in json.loads(content).items()}


@lru_cache(maxsize=1024)
def _candidates(user: str, client_id: str) -> tuple[tuple[QuotaEntity, str | None, str | None], ...]:
    """Entities that a client is under, the one that counts first, each with the user and client id of its rate."""
    id_named, id_default = (CLIENT_ID, client_id), (CLIENT_ID, None)
    user_named, user_default = (USER, user), (USER, None)
    return (
        ((id_named, user_named), user, client_id),
        ((id_default, user_named), user, client_id),
        ((user_named,), user, None),
        ((id_named, user_default), user, client_id),
        ((id_default, user_default), user, client_id),
        ((user_default,), user, None),
        ((id_named,), None, client_id),
        ((id_default,), None, client_id),
    )


def _check_filters(filters: Sequence[QuotaFilter]) -> None:
    types = [each.entity_type for each in filters]
    unknown = set(types) - {USER, CLIENT_ID, IP}
    if unknown:
        raise RequestError(ErrorKind.UNSUPPORTED_VERSION, f"there are no quotas for '{min(unknown)}'")
    if len(set(types)) < len(types):
        raise _invalid("a filter names a type of entity twice")
    if IP in types and len(types) > 1:
        raise _invalid(f"a filter for '{IP}' can name no other type")
    for each in filters:
        if (each.match is Match.EXACT) != (each.name is not None):
            raise _invalid(f"a name to match goes with an exact match, and only with that ('{each.entity_type}')")


def _matches(names: Mapping[str, str | None], filters: Sequence[QuotaFilter], strict: bool) -> bool:
    if strict and (not filters or len(names) != len(filters)):
        return False
    return all(
        each.entity_type in names and (each.match is Match.ANY or names[each.entity_type] == each.name)
        for each in filters
    )


def _checked_value(entity: QuotaEntity, key: str, value: float) -> float:
    keys = _IP_KEYS if entity[0][0] == IP else _CLIENT_KEYS
    if key not in keys:
        raise _invalid(f"this broker enforces no quota '{key}' for '{entity[0][0]}': it does {', '.join(keys)}")
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
