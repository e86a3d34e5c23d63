"""The settings that hold for each group: its own, where it has some, else the broker's."""

from collections.abc import Mapping

from conveyor.settings.tree import GroupsSettings


class SettingsByGroup:
    """One for all parts of a state machine. `update` changes what all of them see."""

    def __init__(self, defaults: GroupsSettings, own: Mapping[str, GroupsSettings]) -> None:
        self._defaults = defaults
        self._own = own

    def of(self, group_id: str) -> GroupsSettings:
        return self._own.get(group_id, self._defaults)

    def update(self, defaults: GroupsSettings, own: Mapping[str, GroupsSettings]) -> None:
        """own: all that holds for a group with something of its own, by group id."""
        self._defaults = defaults
        self._own = own
