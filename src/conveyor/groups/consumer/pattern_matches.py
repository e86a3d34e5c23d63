"""The topics that the patterns of one group match: soft state, which the coordinator computes again after a restart.

    not matched -> begun -(some calls)-> matched -(other topics)-> begun -> matched

Whether a pattern matches a topic depends on nothing else, so a group's records do not repeat the names of the topics.
Kafka stores them (ConsumerGroupRegularExpression), because it matches outside the coordinator's thread. Here each call
does a limited amount of work, and a begun match is finished with the topics that it began with.

A member that brings a pattern is refused until its topics are known, and is to retry. Such patterns are `asked` for.
"""

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

from conveyor.groups.consumer.subscription_patterns import TopicPattern
from conveyor.groups.known_topics import KnownTopics

STEPS_AT_ONCE = 500_000
"""The work of one call. A step is one byte of a topic's name and one instruction of a pattern: up to 15 ns, for most
patterns below 1 ns.
"""

MAX_ASKED = 100
MAX_ASKED_MATCHES = 200_000
"""The most patterns that are asked for, and the most topics that they match. The oldest are forgotten first."""

_STEPS_OF_A_CHARACTER = 1_000
"""The price of compiling a pattern: one of 1,000 characters may take 50 ms, most take some microseconds."""

_STEPS_OF_AN_ID = 10
"""The price of copying a topic's id from one set to another."""

_NO_TOPICS = KnownTopics()
_NOTHING: frozenset[UUID] = frozenset()


class PatternMatches:
    """See the module's docstring. Patterns that match the same topics share one set of topic ids, so that comparing the
    sets is cheap. is_behind: the last `update` has left work.
    """

    def __init__(self, changes: "TopicChanges") -> None:
        self.is_behind = False
        self._matched: dict[str, _Matched] = {}
        self._begun: dict[str, _BegunMatch] = {}
        self._asked: dict[str, None] = {}
        self._changes = changes
        self._change: _TopicChange | None = None

    def topic_ids(self, pattern: str | None) -> frozenset[UUID]:
        """Return the matching topics of the last `update`."""
        return self._matched[pattern].topic_ids if pattern in self._matched else _NOTHING

    def all_topic_ids(self, patterns: Collection[str]) -> set[UUID]:
        """Return the topics that at least one pattern matches."""
        return set[UUID]().union(*{self.topic_ids(pattern) for pattern in patterns})

    def count_asked(self) -> int:
        """Return the number of topics that the patterns match that are only asked for."""
        return self.count(self._asked)

    def count(self, patterns: Collection[str]) -> int:
        """Return the number of matching topics, those of all patterns added up."""
        return sum(len(self.topic_ids(pattern)) for pattern in patterns)

    def ask(self, patterns: Collection[str]) -> None:
        """Keep the matches of patterns that the group does not have yet: a member will ask for them again."""
        for pattern in sorted(patterns):
            self._asked.pop(pattern, None)
            self._asked[pattern] = None
        while len(self._asked) > MAX_ASKED or self.count(self._asked) > MAX_ASKED_MATCHES:
            self._forget(next(iter(self._asked)))

    def forget_others(self, patterns: Collection[str]) -> None:
        """Forget all patterns but these, and those that are asked for."""
        for pattern in [*self._matched.keys() - patterns, *self._begun.keys() - patterns]:
            if pattern not in self._asked:
                self._forget(pattern)

    def update(self, patterns: Collection[str], topics: KnownTopics) -> bool:
        """Match the patterns, and those that are asked for, with the topics that are new to them, and remove deleted
        topics. Returns False if some of `patterns` are left for another call.
        """
        for pattern in patterns:
            self._asked.pop(pattern, None)
        for pattern in list(self._asked):
            if pattern not in self._begun and pattern in self._matched and not self._is_current(pattern, topics):
                self._forget(pattern)  # It was matched, and no member came for it before the topics changed.
        steps = STEPS_AT_ONCE
        for pattern in (*sorted(patterns), *self._asked):
            steps = self._match(pattern, topics, steps)
        is_complete = all(self._is_current(pattern, topics) for pattern in patterns)
        self.is_behind = not is_complete or not all(self._is_current(pattern, topics) for pattern in self._asked)
        if not self.is_behind:
            self._change = None
        return is_complete

    def _match(self, pattern: str, topics: KnownTopics, steps: int) -> int:
        """Match one pattern with at most this many steps, or a little more. Returns the remaining steps."""
        while steps > 0 and not self._is_current(pattern, topics):
            begun = self._begun.get(pattern)
            if begun is None:
                before = self._matched[pattern].topics if pattern in self._matched else _NO_TOPICS
                begun = self._begun[pattern] = _BegunMatch(pattern, self._change_between(before, topics))
                steps -= begun.steps_of_beginning
            steps = begun.work(steps)
            if begun.is_done:
                del self._begun[pattern]
                old = self.topic_ids(pattern)
                self._matched[pattern] = _Matched(self._shared(begun.result(old)), begun.change.now)
                steps -= _STEPS_OF_AN_ID * len(old)
        return steps

    def _is_current(self, pattern: str, topics: KnownTopics) -> bool:
        return pattern in self._matched and self._matched[pattern].topics is topics and pattern not in self._begun

    def _forget(self, pattern: str) -> None:
        for patterns in (self._asked, self._begun, self._matched):
            patterns.pop(pattern, None)

    def _change_between(self, before: KnownTopics, now: KnownTopics) -> "_TopicChange":
        change = self._change
        if change is None or change.before is not before or change.now is not now:
            change = self._change = self._changes.between(before, now)
        return change

    def _shared(self, topic_ids: frozenset[UUID]) -> frozenset[UUID]:
        """Return the set of another pattern that matches the same topics, if there is one."""
        known = (matched.topic_ids for matched in self._matched.values())
        return next((other for other in known if other == topic_ids), topic_ids)


class _Matched(NamedTuple):
    """The topics that a pattern matches among some topics."""

    topic_ids: frozenset[UUID]
    topics: KnownTopics


class _TopicChange:
    """The difference between two snapshots, without the topics that no pattern may match."""

    def __init__(self, before: KnownTopics, now: KnownTopics) -> None:
        self.before = before
        self.now = now
        self.created: list[tuple[bytes, UUID]] = [
            (topic.name.encode(), topic.topic_id)
            for topic in now.by_name.values()
            if not topic.is_internal and topic.topic_id not in before.names_by_id
        ]
        self.deleted = frozenset(topic_id for topic_id in before.names_by_id if topic_id not in now.names_by_id)


class TopicChanges:
    """The changes with which patterns are being matched. All groups share them: after the load of a coordinator each of
    them begins with the same topics.
    """

    def __init__(self) -> None:
        self._in_use: WeakValueDictionary[tuple[int, int], _TopicChange] = WeakValueDictionary()
        """By the `id` of both snapshots, which a change keeps alive."""

    def between(self, before: KnownTopics, now: KnownTopics) -> "_TopicChange":
        place = id(before), id(now)
        change = self._in_use.get(place)
        if change is None:
            change = self._in_use[place] = _TopicChange(before, now)
        return change


class _BegunMatch:
    """A pattern and the created topics of a change, of which some may be left. Without any it is not compiled."""

    def __init__(self, pattern: str, change: _TopicChange) -> None:
        self.change = change
        self.steps_of_beginning = _STEPS_OF_A_CHARACTER * len(pattern) if change.created else 0
        self._pattern = TopicPattern(pattern) if change.created else None
        self._position = 0
        self._found: list[UUID] = []

    @property
    def is_done(self) -> bool:
        return self._position == len(self.change.created)

    def work(self, steps: int) -> int:
        """Match topics until the steps are used up. Returns the remaining steps."""
        pattern, created = self._pattern, self.change.created
        while pattern is not None and steps > 0 and self._position < len(created):
            name, topic_id = created[self._position]
            if pattern.matches(name):
                self._found.append(topic_id)
            steps -= pattern.instructions * (len(name) + 1)
            self._position += 1
        return steps

    def result(self, old: frozenset[UUID]) -> frozenset[UUID]:
        """Return the topics that match now. old: those that matched before the change."""
        if not self._found and old.isdisjoint(self.change.deleted):
            return old
        return (old - self.change.deleted).union(self._found)
