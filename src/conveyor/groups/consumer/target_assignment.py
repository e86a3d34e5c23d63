"""Computes a group's epoch and target assignment from its members' subscriptions and the existing topics."""

from collections.abc import Mapping
from uuid import UUID

from conveyor.groups.consumer.assignors import ASSIGNORS, AssignorChoice
from conveyor.groups.consumer.group_draft import GroupDraft
from conveyor.groups.consumer.pattern_matches import PatternMatches
from conveyor.groups.known_topics import KnownTopics
from conveyor.groups.records.consumer_member import MemberSubscription
from conveyor.kernel.errors import ErrorKind, RequestError

MAX_PATTERNS = 100
"""The most different patterns of a group. Each is matched with each new topic."""

MAX_MATCHES = 200_000
"""The most topics that the patterns of a group match, those of all patterns added up. New topics may exceed it: the
members stay and get these topics, but no member can add a pattern then.
"""


def refresh(draft: GroupDraft, matches: PatternMatches, topics: KnownTopics, *, has_changed: bool) -> bool:
    """Resolve the subscriptions against the existing topics, and raise the group epoch if the result has changed.
    Returns False if some patterns are left for another call; until then the group keeps its topics.

    has_changed: a member joined, left or changed its subscription.

    Raises RequestError: GROUP_MAX_SIZE_REACHED, COORDINATOR_LOADING.
    """
    wanted, before = draft.subscriptions.patterns(), draft.subscriptions.patterns_before()
    if len(wanted) > MAX_PATTERNS and wanted - before:
        raise _too_large(draft, f"{MAX_PATTERNS} different patterns")
    matches.forget_others(wanted | before)  # If the draft is refused, the group still has the patterns from before.
    is_complete = matches.update(wanted, topics)
    if not is_complete and wanted - before:  # Nobody knows yet how many topics the patterns match.
        matches.ask(wanted - before)
        message = f"the patterns of group '{draft.group_id}' are being matched with the topics: retry"
        raise RequestError(ErrorKind.COORDINATOR_LOADING, message)
    match_count = matches.count(wanted)
    if match_count > MAX_MATCHES and match_count > matches.count(before):
        raise _too_large(draft, f"patterns that would match {match_count} topics in all: at most {MAX_MATCHES}")
    if is_complete:
        matching = (topics.names_by_id[topic_id] for topic_id in matches.all_topic_ids(wanted))
        names = draft.subscriptions.names_among(topics).union(matching)
        existing = {name: topics.by_name[name] for name in names}
        described = {name: (topic.topic_id, topic.partition_count) for name, topic in existing.items()}
        if described != draft.topics:
            draft.put_topics(described)
            has_changed = True
    if has_changed:
        draft.raise_epoch()
    return is_complete


def retarget(draft: GroupDraft, matches: PatternMatches, choice: AssignorChoice) -> None:
    """Compute a new target assignment if the group epoch has risen. Only members with a changed target get a record."""
    if draft.epoch <= draft.target_epoch:
        return
    subscriptions = draft.subscriptions.all()
    wishes = _wishes(draft, matches, subscriptions)
    previous = draft.targets()
    if wishes:
        assign = ASSIGNORS[choice.elect(subscription.assignor for subscription in subscriptions.values())]
        wanted = frozenset[UUID]().union(*set(wishes.values()))
        counts = {topic_id: count for topic_id, count in draft.topics.values() if topic_id in wanted}
        for member_id, target in assign(wishes, previous, counts).items():
            if previous.get(member_id) != target:
                draft.put_target(member_id, target)
    draft.finish_target()


def _too_large(draft: GroupDraft, what: str) -> RequestError:
    return RequestError(ErrorKind.GROUP_MAX_SIZE_REACHED, f"group '{draft.group_id}' has {what}")


def _wishes(
    draft: GroupDraft, matches: PatternMatches, subscriptions: Mapping[str, MemberSubscription]
) -> dict[str, frozenset[UUID]]:
    """Return the existing topics to which each member subscribes. Members with equal subscriptions share one set."""
    existing = frozenset(draft.topics)
    wishes: dict[str, frozenset[UUID]] = {}
    shared: dict[tuple[frozenset[str], frozenset[UUID]], frozenset[UUID]] = {}
    for member_id in sorted(subscriptions):
        subscription = subscriptions[member_id]
        key = (subscription.topics, matches.topic_ids(subscription.pattern))
        if key not in shared:
            shared[key] = _subscribed_topics(draft, existing, *key)
        wishes[member_id] = shared[key]
    return wishes


def _subscribed_topics(
    draft: GroupDraft, existing: frozenset[str], names: frozenset[str], matching: frozenset[UUID]
) -> frozenset[UUID]:
    named = existing & names  # Goes through the smaller set.
    return matching.union(draft.topics[name][0] for name in named)
