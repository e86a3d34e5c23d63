"""The subscriptions of a group's members as they will be once the decided records are applied, and their limits."""

from collections import Counter
from collections.abc import Iterable

from conveyor.groups.consumer.consumer_group import ConsumerGroup
from conveyor.groups.known_topics import KnownTopics
from conveyor.groups.records.consumer_member import MemberSubscription
from conveyor.kernel.errors import ErrorKind, RequestError

MAX_NAMES = 500_000
"""The most topic names in the subscriptions of a group, those of all members added up. They are kept in memory, also if
the topics do not exist.
"""

MAX_MEMBER_BYTES = 1 << 20
"""The most bytes of a member of the consumer protocol: the keys of its records, and its subscription. A change of one
field writes the whole subscription. Kafka takes a record of 1 MiB by default.
"""

MAX_MEMBERS_BYTES = 32 << 20
"""The most bytes of all members of a group, those of the classic protocol included."""


class SubscriptionsDraft:
    """The subscriptions of a group, with pending changes; see the module's docstring."""

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group
        self._changed: dict[str, MemberSubscription | None] = {}
        self._member_bytes: dict[str, int] = {}

    def get(self, member_id: str) -> MemberSubscription | None:
        return self._changed.get(member_id, self._group.subscriptions.get(member_id))

    def all(self) -> dict[str, MemberSubscription]:
        merged = {**self._group.subscriptions, **self._changed}
        return {member_id: value for member_id, value in merged.items() if value is not None}

    def put(self, member_id: str, subscription: MemberSubscription | None, member_bytes: int) -> None:
        """Change a member's subscription. None: the member leaves."""
        self._changed[member_id] = subscription
        self._member_bytes[member_id] = member_bytes

    def dropped(self) -> list[str]:
        """Return the members that leave."""
        return [member_id for member_id, subscription in self._changed.items() if subscription is None]

    def patterns(self) -> set[str]:
        """Return the different patterns of the members."""
        return _patterns(self.all().values())

    def patterns_before(self) -> set[str]:
        """Return the different patterns that the members had before the changes."""
        return _patterns(self._group.subscriptions.values())

    def names_among(self, topics: KnownTopics) -> set[str]:
        """Return the existing topics to which members subscribe by name."""
        changes = Counter[str]()
        for member_id, subscription in self._changed.items():
            old = self._group.subscriptions.get(member_id)
            changes.update(() if subscription is None else subscription.topics)
            changes.subtract(() if old is None else old.topics)
        names = self._group.names
        changed = changes.keys() & topics.by_name.keys()
        subscribed = {name for name in changed if names.get(name, 0) + changes[name] > 0}
        return (topics.by_name.keys() & names.keys()) - changed | subscribed

    def bytes_in_all(self) -> int:
        before = self._group.member_bytes
        changes = (size - before.get(member_id, 0) for member_id, size in self._member_bytes.items())
        return self._group.member_bytes_in_all + sum(changes)

    def check_names(self, member_id: str, wanted: MemberSubscription) -> None:
        """Check that a member does not name too many topics. Raises RequestError (GROUP_MAX_SIZE_REACHED)."""
        old = self.get(member_id)
        more = len(wanted.topics) - (0 if old is None else len(old.topics))
        count = self._group.name_count + more
        if more > 0 and count > MAX_NAMES:
            raise RequestError(
                ErrorKind.GROUP_MAX_SIZE_REACHED,
                f"the members of group '{self._group.group_id}' would name {count} topics in all: at most {MAX_NAMES};"
                " use a regular expression",
            )

    def check_bytes(self) -> None:
        """Check that the members do not become too large. Raises RequestError (GROUP_MAX_SIZE_REACHED)."""
        group = self._group
        for member_id, size in self._member_bytes.items():
            subscription = self._changed[member_id]
            is_classic = subscription is not None and subscription.classic is not None
            if not is_classic and size > max(MAX_MEMBER_BYTES, group.member_bytes.get(member_id, 0)):
                raise _too_large(f"member '{member_id}' of group '{group.group_id}'", size, MAX_MEMBER_BYTES)
        in_all = self.bytes_in_all()
        if in_all > max(MAX_MEMBERS_BYTES, group.member_bytes_in_all):
            raise _too_large(f"the members of group '{group.group_id}'", in_all, MAX_MEMBERS_BYTES)


def _patterns(subscriptions: Iterable[MemberSubscription]) -> set[str]:
    return {subscription.pattern for subscription in subscriptions if subscription.pattern}


def _too_large(subject: str, size: int, limit: int) -> RequestError:
    return RequestError(
        ErrorKind.GROUP_MAX_SIZE_REACHED, f"{subject} would have {size} bytes in ids and subscriptions: at most {limit}"
    )
