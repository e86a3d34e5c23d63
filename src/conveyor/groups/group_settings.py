"""The settings of each group: its own if it has some, otherwise the broker's defaults."""

from collections.abc import Mapping

from conveyor.settings.tree import GroupsSettings


class SettingsByGroup:
    """Shared by all parts of a state machine, so that `update` takes effect in all of them."""

    def __init__(self, defaults: GroupsSettings, own: Mapping[str, GroupsSettings]) -> None:
        self._defaults = defaults
        self._own = own

    def of(self, group_id: str) -> GroupsSettings:
        return self._own.get(group_id, self._defaults)

    def update(self, defaults: GroupsSettings, own: Mapping[str, GroupsSettings]) -> None:
        """own: by group id, the complete settings of each group that overrides some of the defaults."""
        self._defaults = defaults
        self._own = own
