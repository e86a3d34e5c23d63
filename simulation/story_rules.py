"""The rules of a cluster's story: settings and speeds that hold for all of it. They are steps of its schedule.

brokers          how many there are: 1, which embeds its metadata, or 3
lag_ms           `broker.replica_lag_time_max_ms`
watch_delay_ms   the longest time until a watch of the metadata store is noticed
store_delay_ms   the longest way to the metadata store, or back
min_insync       `min.insync.replicas` of the plain topic
is_unclean       whether unclean elections are allowed for the topics of TOPICS that may lose records
<topic>          whether there is this topic of TOPICS
moves            the replicas of the coordinator of transactions; 0 without transactions
<trouble>        whether there is this one of TROUBLES
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random

from conveyor.cluster.topic_creation import TopicRequest
from simulation.story_schedule import Step, StorySchedule
from simulation.story_topics import DELAY_TOPIC, DUE_TOPIC, LOG_TOPIC, PARTITIONS, QUEUE_TOPIC
from simulation.troubles import CLOCKS, FIVE_BROKERS, TROUBLES

RULES = "rules"
LONE_TOPIC, PAIR_TOPIC, SOFT_TOPIC = "lone", "pair", "soft"
TOPICS = (QUEUE_TOPIC, DELAY_TOPIC, LONE_TOPIC, PAIR_TOPIC, SOFT_TOPIC)
"""The topics that only some stories have."""
MOVES_TOPIC = "moves"
"""The topic of the stories with transactions, and their rule."""

NODE_IDS = (1, 2, 3)
"""The brokers of most stories."""
_REPLICAS = 3
_MIN_INSYNC, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryRules:
    """See the module's docstring. A rule that the schedule does not have is as here."""

    brokers: int = 3
    lag_ms: int = 2_000
    watch_delay_ms: int = 0
    store_delay_ms: int = 3
    min_insync: int = 2
    is_unclean: int = 0
    moves: int = 0
    topics: frozenset[str] = frozenset()
    troubles: frozenset[str] = frozenset()

    @property
    def node_ids(self) -> Sequence[int]:
        """The brokers."""
        return range(1, 1 + (5 if FIVE_BROKERS in self.troubles else self.brokers))

    @property
    def is_alone(self) -> bool:
        """True if the only broker embeds its metadata."""
        return len(self.node_ids) == 1

    def replicas(self, wanted: int = _REPLICAS) -> int:
        """Return how many replicas a partition can have, if it should have so many."""
        return min(wanted, len(self.node_ids))

    @property
    def owners(self) -> frozenset[str]:
        """The topics that only some stories have, with the target of the delayed topic in its place."""
        return frozenset(DUE_TOPIC if name == DELAY_TOPIC else name for name in self.topics)

    def requests(self) -> list[TopicRequest]:
        """Return the topics to create."""
        unclean = {_UNCLEAN: "true"} if self.is_unclean else {}
        configs: dict[str, dict[str, str]] = {
            QUEUE_TOPIC: {},
            DELAY_TOPIC: {"delay.target": DUE_TOPIC},
            LONE_TOPIC: {_MIN_INSYNC: "1"},
            PAIR_TOPIC: {_MIN_INSYNC: "1", **unclean},
            SOFT_TOPIC: {"flush.policy": "os", **unclean},
        }
        factors = {LONE_TOPIC: 1, PAIR_TOPIC: 2}
        stamped = {"message.timestamp.type": "LogAppendTime"} if CLOCKS in self.troubles else {}
        replicas = self.replicas()
        requests = [
            _request(LOG_TOPIC, PARTITIONS, replicas, {_MIN_INSYNC: str(self.replicas(self.min_insync)), **stamped})
        ]
        if self.moves:
            requests.append(_request(MOVES_TOPIC, PARTITIONS, replicas, {}))
        for name in TOPICS:
            if name in self.topics:
                partitions = 1 if name == DELAY_TOPIC else PARTITIONS
                requests += [_request(DUE_TOPIC, partitions, replicas, {})] if name == DELAY_TOPIC else []
                requests.append(_request(name, partitions, self.replicas(factors.get(name, _REPLICAS)), configs[name]))
        for trouble in sorted(self.troubles):
            for name, config in TROUBLES[trouble].topics.items():
                requests.append(_request(name, PARTITIONS, self.replicas(TROUBLES[trouble].replicas), config))
        return requests

    def settings(self) -> dict[str, object]:
        """Return the settings of all brokers."""
        settings: dict[str, object] = {
            "broker.replica_lag_time_max_ms": self.lag_ms,
            "groups.offsets_replication_factor": self.replicas(),
            "topics.min_insync_replicas": self.replicas(2),
            "transactions.state_replication_factor": self.replicas(self.moves or _REPLICAS),
        }
        for trouble in self.troubles:
            settings |= TROUBLES[trouble].settings
        return settings


def make_rules(chance: Random, brokers: int) -> list[Step]:
    """Return the steps with the rules of one story."""
    choices = {
        "lag_ms": (500, 1_000, 2_000, 10_000),
        "watch_delay_ms": (0, 5, 100, 600),
        "store_delay_ms": (3, 3, 20, 100),
        "min_insync": (1, 2, 2),
        "is_unclean": (0, 0, 1),
    }
    rules = {"brokers": brokers} | {name: chance.choice(values) for name, values in choices.items()}
    rules |= {name: 1 for name in TOPICS if chance.random() < 0.4}
    return [Step(0, RULES, name, number) for name, number in rules.items()]


def rules_of(schedule: StorySchedule) -> StoryRules:
    """Return the rules that a schedule contains."""
    found: Mapping[str, int] = {step.action: step.number for step in schedule.steps if step.actor == RULES}
    numbers = {field.name: found[field.name] for field in fields(StoryRules) if field.name in found}
    topics, troubles = (frozenset(name for name in names if found.get(name)) for names in (TOPICS, TROUBLES))
    return StoryRules(**numbers, topics=topics, troubles=troubles)


def _request(name: str, partitions: int, replicas: int, config: Mapping[str, str]) -> TopicRequest:
    return TopicRequest(name=name, partitions=partitions, replication_factor=replicas, config=config)
