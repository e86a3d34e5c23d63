"""The fixed settings of the broker's internal topics. Clients cannot change them, but for the `flush.policy` of
`__transaction_state`.

They apply whether a client or the broker creates the topic. A state machine replays each of these topics at its start,
so an internal topic must not lose a record that the machine still needs. `__consumer_offsets` and `__transaction_state`
are compacted: the last record of each key is the state. The owner of a companion trims it, so retention deletes nothing
by time or size.
"""

from collections.abc import Mapping
from types import MappingProxyType

from conveyor.cluster.image import COMPANIONS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, companion_of, is_companion
from conveyor.kernel.errors import ErrorKind, RequestError

_SAFE = {
    "flush.policy": "ack",  # A reply that depends on a record is sent only once the record is on the disk.
    "max.message.bytes": str((1 << 31) - 1),  # `groups.max_size` limits a group, not the size of its record.
}
_COORDINATORS = MappingProxyType(
    _SAFE
    | {
        "cleanup.policy": "compact",
        "segment.bytes": str(100 << 20),
    }  # Small segments, because the active segment is not compacted.
)
_COMPANION = MappingProxyType(
    _SAFE
    | {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    | {"segment.bytes": str(16 << 20)}  # Small segments, so that trimmed records are soon removed from the disk.
)
_FLUSH_POLICIES = ("ack", "os")
_NONE: Mapping[str, str] = MappingProxyType({})


def owner_of(name: str) -> str:
    """Return the topic that a companion belongs to; for any other topic, its own name."""
    return next((owner for kind in COMPANIONS if (owner := companion_of(kind, name))), name)


def own_config(name: str) -> Mapping[str, str]:
    """Return the settings that a topic of this name must have; empty for a client's topic."""
    if name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        return _COORDINATORS
    return _COMPANION if is_companion(name) else _NONE


def with_own_config(name: str, config: Mapping[str, str]) -> Mapping[str, str]:
    """Return a topic's settings with the mandatory ones added. Raises RequestError (INVALID_CONFIG) for a conflicting
    value.

    A missing mandatory setting, for example after its deletion, is added again.
    """
    own = own_config(name)
    for setting, value in own.items():
        if config.get(setting, value) not in _choices(name, setting, value):
            raise RequestError(
                ErrorKind.INVALID_CONFIG,
                f"'{setting}' of '{name}' is {value} and cannot be changed: the topic has the broker's own records",
            )
    return {**own, **config}


def mended_config(name: str, config: Mapping[str, str]) -> Mapping[str, str]:
    """Return a topic's settings in which missing and wrong mandatory ones are replaced."""
    own = own_config(name)
    wrong = {
        setting: value for setting, value in own.items() if config.get(setting) not in _choices(name, setting, value)
    }
    return {**config, **wrong}


def _choices(name: str, setting: str, value: str) -> tuple[str, ...]:
    """Return the values that a mandatory setting may have. See `transactions.state_flush_policy`."""
    return _FLUSH_POLICIES if (name, setting) == (TRANSACTIONS_TOPIC, "flush.policy") else (value,)
