"""The settings of the broker's own topics. They hold whoever makes such a topic, and no client can change them.

A state machine replays each of these topics at its start, so none of them may lose a record that the machine still
needs. `__consumer_offsets` is compacted: the last record of each key is the state. The owner of a companion trims it
itself, so nothing is deleted by time or size.
"""

from collections.abc import Mapping
from types import MappingProxyType

from conveyor.cluster.image import OFFSETS_TOPIC, is_companion
from conveyor.kernel.errors import ErrorKind, RequestError

_SAFE = {
    "flush.policy": "ack",  # A reply that depends on a record is sent once the record is on the disk.
    "max.message.bytes": str((1 << 31) - 1),  # `groups.max_size` limits a group, not the size of its record.
}
_OFFSETS = MappingProxyType(
    _SAFE | {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}  # Small, so that most of it is compacted.
)
_COMPANION = MappingProxyType(
    _SAFE
    | {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    | {"segment.bytes": str(16 << 20)}  # Small, so that the files of what was trimmed are soon removed.
)
_NONE: Mapping[str, str] = MappingProxyType({})


def own_config(name: str) -> Mapping[str, str]:
    """The settings that a topic of this name must have; empty for a topic of clients."""
    if name == OFFSETS_TOPIC:
        return _OFFSETS
    return _COMPANION if is_companion(name) else _NONE


def with_own_config(name: str, config: Mapping[str, str]) -> Mapping[str, str]:
    """A topic's settings together with those that it must have. Raises RequestError (INVALID_CONFIG) on another value.

    A setting that is left out, as after its deletion, is put back.
    """
    own = own_config(name)
    for setting, value in own.items():
        if config.get(setting, value) != value:
            raise RequestError(
                ErrorKind.INVALID_CONFIG,
                f"'{setting}' of '{name}' is {value} and cannot be changed: the topic holds the broker's own records",
            )
    return {**config, **own}
