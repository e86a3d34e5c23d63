"""The topics that the patterns of one group match: soft state, which the coordinator computes again after a restart.

Whether a pattern matches a topic depends on nothing else, so a group's records do not repeat the names of the topics.
Kafka stores them (ConsumerGroupRegularExpression), because it matches outside the coordinator's thread.
"""

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from conveyor.groups.consumer.subscription_patterns import matching_topics
from conveyor.groups.known_topics import KnownTopic, KnownTopics

STEPS_AT_ONCE = 50_000_000
"""After this many steps of `matching_topics`, a command leaves the other topics and patterns to the next command. Of
the slowest patterns, a step takes two nanoseconds.
"""

_NO_TOPICS = KnownTopics()
_NOTHING: frozenset[UUID] = frozenset()


class PatternMatches:
    """See the module's docstring. Patterns that match the same topics share one set of topic ids, so that comparing the
    sets is cheap.
    """

    def __init__(self) -> None:
        self._matched: dict[str, frozenset[UUID]] = {}
        self._matched_with: dict[str, KnownTopics] = {}
        self._begun: dict[str, _Begun] = {}

    def topic_ids(self, pattern: str | None) -> frozenset[UUID]:
        """Return the matching topics of the last `update`."""
        return self._matched.get(pattern or "", _NOTHING)

    def all_topic_ids(self, patterns: Collection[str]) -> set[UUID]:
        """Return the topics that at least one pattern matches."""
        return set[UUID]().union(*{self.topic_ids(pattern) for pattern in patterns})

    def count(self, patterns: Collection[str], topics: KnownTopics) -> int:
        """Return the number of matching topics, those of all patterns added up. A pattern that is not matched with the
        topics yet may match all of them.
        """
        return sum(
            len(self._matched[pattern] if self._matched_with.get(pattern) is topics else topics.by_name)
            for pattern in patterns
        )

    def forget_others(self, patterns: Collection[str]) -> None:
        """Forget all patterns but these."""
        for pattern in self._matched.keys() - patterns:
            del self._matched[pattern], self._matched_with[pattern]
        for pattern in self._begun.keys() - patterns:
            del self._begun[pattern]

    def update(self, patterns: Collection[str], topics: KnownTopics) -> bool:
        """Match each pattern with the topics that are new to it, and remove deleted topics. Returns False if something
        is left for another call.
        """
        changes: dict[KnownTopics, _TopicChange] = {}
        results: dict[tuple[KnownTopics, frozenset[UUID], frozenset[UUID]], frozenset[UUID]] = {}
        steps_left = STEPS_AT_ONCE
        for pattern in sorted(patterns):
            before = self._matched_with.get(pattern, _NO_TOPICS)
            if before is topics:
                continue
            if before not in changes:
                changes[before] = _TopicChange(before, topics)
            change, begun = changes[before], self._begun.pop(pattern, None)
            if begun is None or begun.topics is not topics:
                begun = _Begun(topics, 0, _NOTHING)
            if begun.position < len(change.created):
                if steps_left <= 0:
                    self._begun[pattern] = begun
                    return False
                more, position, steps = matching_topics(pattern, change.created, begun.position, steps_left)
                steps_left -= steps
                begun = _Begun(topics, position, begun.found | more)
            if begun.position < len(change.created):
                self._begun[pattern] = begun
                return False
            old, found = self.topic_ids(pattern), begun.found
            if (before, old, found) not in results:
                results[before, old, found] = self._shared(old - change.deleted | found)
            self._matched[pattern], self._matched_with[pattern] = results[before, old, found], topics
        return True

    def _shared(self, topic_ids: frozenset[UUID]) -> frozenset[UUID]:
        """Return the set of another pattern that matches the same topics, if there is one."""
        return next((ids for ids in self._matched.values() if ids == topic_ids), topic_ids)


class _Begun(NamedTuple):
    """A pattern that is matched with the new topics up to a position, since the last complete match."""

    topics: KnownTopics
    position: int
    found: frozenset[UUID]


class _TopicChange:
    """The difference between two snapshots, without the topics that no pattern may match."""

    def __init__(self, before: KnownTopics, now: KnownTopics) -> None:
        self.created: list[KnownTopic] = [
            topic
            for topic in now.by_name.values()
            if not topic.is_internal and topic.topic_id not in before.names_by_id
        ]
        self.deleted = frozenset(topic_id for topic_id in before.names_by_id if topic_id not in now.names_by_id)
