"""Computes a group's epoch and target assignment from its members' subscriptions and the existing topics."""

from collections.abc import Mapping
from uuid import UUID

from conveyor.groups.consumer.assignors import ASSIGNORS, AssignorChoice
from conveyor.groups.consumer.group_draft import GroupDraft
from conveyor.groups.consumer.subscription_patterns import matching_names
from conveyor.groups.known_topics import KnownTopics
from conveyor.groups.records.consumer_member import MemberSubscription
from conveyor.kernel.errors import ErrorKind, RequestError

MAX_PATTERNS = 100
"""The most different patterns of a group. Each is matched with each new topic."""


def refresh(draft: GroupDraft, topics: KnownTopics, before: KnownTopics, now_ms: int, *, has_changed: bool) -> None:
    """Resolve the subscriptions against the existing topics, and raise the group epoch if the result has changed.

    before: the topics of the last `refresh`, which are not matched again with the group's patterns.
    has_changed: a member joined, left or changed its subscription.

    Raises RequestError (GROUP_MAX_SIZE_REACHED).
    """
    subscriptions = draft.subscriptions()
    wanted = {subscription.pattern for subscription in subscriptions.values() if subscription.pattern}
    if wanted or draft.patterns:
        has_changed |= _refresh_patterns(draft, wanted, topics, before, now_ms)
    names = draft.names_among(topics).union(*draft.patterns.values())
    existing = {name: topics.by_name[name] for name in sorted(names) if name in topics.by_name}
    described = {name: (topic.topic_id, topic.partition_count) for name, topic in existing.items()}
    if described != draft.topics:
        draft.put_topics(described)
        has_changed = True
    if has_changed:
        draft.raise_epoch()


def retarget(draft: GroupDraft, choice: AssignorChoice) -> None:
    """Compute a new target assignment if the group epoch has risen. Only members with a changed target get a record."""
    if draft.epoch <= draft.target_epoch:
        return
    subscriptions = draft.subscriptions()
    wishes = _wishes(draft, subscriptions)
    previous = draft.targets()
    if wishes:
        assign = ASSIGNORS[choice.elect(subscription.assignor for subscription in subscriptions.values())]
        wanted = frozenset[UUID]().union(*set(wishes.values()))
        counts = {topic_id: count for topic_id, count in draft.topics.values() if topic_id in wanted}
        for member_id, target in assign(wishes, previous, counts).items():
            if previous.get(member_id) != target:
                draft.put_target(member_id, target)
    draft.finish_target()


def _refresh_patterns(
    draft: GroupDraft, wanted: set[str], topics: KnownTopics, before: KnownTopics, now_ms: int
) -> bool:
    if len(wanted) > MAX_PATTERNS and wanted - draft.patterns.keys():
        raise RequestError(
            ErrorKind.GROUP_MAX_SIZE_REACHED, f"group '{draft.group_id}' has {MAX_PATTERNS} different patterns"
        )
    all_names, new_names = _public_names(topics, KnownTopics()), _public_names(topics, before)
    has_changed = False
    for pattern in sorted(draft.patterns.keys() - wanted):
        draft.drop_pattern(pattern)
    for pattern in sorted(wanted):
        known = draft.patterns.get(pattern)
        if known is None:
            matching = matching_names(pattern, all_names)
        else:
            matching = (known & topics.by_name.keys()) | matching_names(pattern, new_names)
        if known != matching:
            draft.put_pattern(pattern, matching, now_ms)
            has_changed = True
    return has_changed


def _public_names(topics: KnownTopics, besides: KnownTopics) -> list[str]:
    """Return the topics that a pattern may match, without those that were known before."""
    return [name for name, topic in topics.by_name.items() if not topic.is_internal and name not in besides.by_name]


def _wishes(draft: GroupDraft, subscriptions: Mapping[str, MemberSubscription]) -> dict[str, frozenset[UUID]]:
    """Return the existing topics to which each member subscribes. Members with equal subscriptions share one set."""
    existing = frozenset(draft.topics)
    wishes: dict[str, frozenset[UUID]] = {}
    shared: dict[tuple[frozenset[str], str | None], frozenset[UUID]] = {}
    for member_id in sorted(subscriptions):
        subscription = subscriptions[member_id]
        key = (subscription.topics, subscription.pattern)
        if key not in shared:
            shared[key] = _subscribed_topics(draft, existing, subscription)
        wishes[member_id] = shared[key]
    return wishes


def _subscribed_topics(
    draft: GroupDraft, existing: frozenset[str], subscription: MemberSubscription
) -> frozenset[UUID]:
    names = existing & subscription.topics  # Goes through the smaller set.
    if subscription.pattern:
        names |= existing & draft.patterns.get(subscription.pattern, frozenset())
    return frozenset(draft.topics[name][0] for name in names)
