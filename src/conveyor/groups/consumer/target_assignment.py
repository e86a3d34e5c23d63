"""How a group's epoch and its target assignment follow from its members' wishes and the topics that there are."""

from uuid import UUID

from conveyor.groups.consumer.assignors import ASSIGNORS, AssignorChoice
from conveyor.groups.consumer.group_draft import GroupDraft
from conveyor.groups.consumer.subscription_patterns import matching_topics
from conveyor.groups.known_topics import KnownTopics
from conveyor.groups.records.consumer_member import Subscription


def refresh(draft: GroupDraft, topics: KnownTopics, now_ms: int, *, has_changed: bool) -> None:
    """Look again at what the members want and what is there; the epoch rises if that has changed.

    has_changed: somebody came or left, or wants something else.
    """
    subscriptions = draft.subscriptions()
    has_changed |= _refresh_patterns(draft, subscriptions, topics, now_ms)
    names = {name for each in subscriptions.values() for name in each.topics}
    names = names.union(*draft.patterns.values())
    found = {name: topics.by_name[name] for name in sorted(names) if name in topics.by_name}
    described = {name: (topic.topic_id, topic.partition_count) for name, topic in found.items()}
    if described != draft.topics:
        draft.put_topics(described)
        has_changed = True
    if has_changed:
        draft.raise_epoch()


def retarget(draft: GroupDraft, choice: AssignorChoice) -> None:
    """Share the partitions out anew, if the epoch has risen. Only what differs is written."""
    if draft.epoch <= draft.target_epoch:
        return
    subscriptions = draft.subscriptions()
    wishes = {member_id: _wished(draft, subscriptions[member_id]) for member_id in sorted(subscriptions)}
    previous = draft.targets()
    if wishes:
        assign = ASSIGNORS[choice.elect(each.assignor for each in subscriptions.values())]
        wanted = frozenset[UUID]().union(*wishes.values())
        counts = {topic_id: count for topic_id, count in draft.topics.values() if topic_id in wanted}
        for member_id, target in assign(wishes, previous, counts).items():
            if previous.get(member_id) != target:
                draft.put_target(member_id, target)
    draft.finish_target()


def _refresh_patterns(
    draft: GroupDraft, subscriptions: dict[str, Subscription], topics: KnownTopics, now_ms: int
) -> bool:
    wanted = {each.pattern for each in subscriptions.values() if each.pattern}
    has_changed = False
    for pattern in sorted(draft.patterns.keys() - wanted):
        draft.drop_pattern(pattern)
    for pattern in sorted(wanted):
        found = matching_topics(pattern, topics)
        if draft.patterns.get(pattern) != found:
            draft.put_pattern(pattern, found, now_ms)
            has_changed = True
    return has_changed


def _wished(draft: GroupDraft, subscription: Subscription) -> frozenset[UUID]:
    names = set(subscription.topics)
    if subscription.pattern:
        names |= draft.patterns.get(subscription.pattern, frozenset())
    return frozenset(draft.topics[name][0] for name in names if name in draft.topics)
