"""The topics that the patterns of one group match: soft state, which the coordinator computes again after a restart.

Whether a pattern matches a topic depends on nothing else, so a group's records do not repeat the names of the topics.
Kafka stores them (ConsumerGroupRegularExpression), because it matches outside the coordinator's thread.
"""

from collections.abc import Collection
from uuid import UUID

from conveyor.groups.consumer.subscription_patterns import matching_topics
from conveyor.groups.known_topics import KnownTopic, KnownTopics

MATCHED_AT_ONCE = 10_000
"""After this many matches, a command leaves the remaining patterns to the next command. One takes some microseconds."""

_NO_TOPICS = KnownTopics()
_NOTHING: frozenset[UUID] = frozenset()


class PatternMatches:
    """See the module's docstring. Patterns that match the same topics share one set of topic ids, so that comparing the
    sets is cheap.
    """

    def __init__(self) -> None:
        self._matched: dict[str, frozenset[UUID]] = {}
        self._matched_with: dict[str, KnownTopics] = {}

    def topic_ids(self, pattern: str | None) -> frozenset[UUID]:
        """Return the matching topics of the last `update`."""
        return self._matched.get(pattern or "", _NOTHING)

    def all_topic_ids(self, patterns: Collection[str]) -> set[UUID]:
        """Return the topics that at least one pattern matches."""
        return set[UUID]().union(*{self.topic_ids(pattern) for pattern in patterns})

    def count(self, patterns: Collection[str]) -> int:
        """Return the number of matching topics, those of all patterns added up."""
        return sum(len(self.topic_ids(pattern)) for pattern in patterns)

    def forget_others(self, patterns: Collection[str]) -> None:
        """Forget all patterns but these."""
        for pattern in self._matched.keys() - patterns:
            del self._matched[pattern], self._matched_with[pattern]

    def update(self, patterns: Collection[str], topics: KnownTopics) -> bool:
        """Match each pattern with the topics that are new to it, and remove deleted topics. Returns False if some
        patterns are left for another call. Each call finishes at least one.
        """
        changes: dict[KnownTopics, _TopicChange] = {}
        results: dict[tuple[KnownTopics, frozenset[UUID], frozenset[UUID]], frozenset[UUID]] = {}
        matched_count = 0
        for pattern in sorted(patterns):
            before = self._matched_with.get(pattern, _NO_TOPICS)
            if before is topics:
                continue
            if matched_count >= MATCHED_AT_ONCE:
                return False
            if before not in changes:
                changes[before] = _TopicChange(before, topics)
            change = changes[before]
            old, found = self.topic_ids(pattern), matching_topics(pattern, change.created)
            matched_count += len(change.created)
            if (before, old, found) not in results:
                results[before, old, found] = self._shared(old - change.deleted | found)
            self._matched[pattern], self._matched_with[pattern] = results[before, old, found], topics
        return True

    def _shared(self, topic_ids: frozenset[UUID]) -> frozenset[UUID]:
        """Return the set of another pattern that matches the same topics, if there is one."""
        return next((ids for ids in self._matched.values() if ids == topic_ids), topic_ids)


class _TopicChange:
    """The difference between two snapshots, without the topics that no pattern may match."""

    def __init__(self, before: KnownTopics, now: KnownTopics) -> None:
        self.created: list[KnownTopic] = [
            topic
            for topic in now.by_name.values()
            if not topic.is_internal and topic.topic_id not in before.names_by_id
        ]
        self.deleted = frozenset(topic_id for topic_id in before.names_by_id if topic_id not in now.names_by_id)
