"""The promises about topics that are repeatedly created, changed and deleted under a few names.

Invariants, by the names that failures report:

    NoLostTopic              a topic whose creation or change was acknowledged keeps its acknowledged id, partitions,
                             settings, subscriptions and schedules until a client requests its deletion
    NoResurrectedTopic       a topic whose deletion was acknowledged does not come back, and the next topic of its name
                             does not serve its records

A change without a reply may have happened or not. Several states are then possible, until the broker starts again and
shows the stored state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.kernel.errors import ErrorKind
from simulation.ledger import DelayLedger, InvariantBroken, LogLedger, Place, QueueLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """The expected state of a topic. topic_id: None until an image has shown it."""

    topic_id: UUID | None
    partitions: int
    config: tuple[tuple[str, str], ...]

    def matches(self, topic: TopicImage) -> bool:
        """Return whether a topic of an image has this state."""
        return replace(self, topic_id=None) == replace(_state(topic), topic_id=None) and (
            self.topic_id in (None, topic.topic_id)
        )


Possible = Sequence[TopicState | None]
Effect = Callable[[TopicState | None], Possible]
"""Maps a state to the possible states after a change; to none if the broker must refuse the change."""

_REFUSALS = {ErrorKind.TOPIC_ALREADY_EXISTS, ErrorKind.UNKNOWN_TOPIC, ErrorKind.INVALID_PARTITIONS}


@dataclass(frozen=True, slots=True)
class Instance:
    """One of the successive topics of a name."""

    name: str
    topic_id: UUID
    partitions: int

    def place(self, partition: int) -> Place:
        return f"{self.name} {self.topic_id}", partition


class TopicLedger:
    """See the module's docstring. Changes of one name do not overlap."""

    def __init__(self, names: Sequence[str]) -> None:
        self.logs = LogLedger()
        self.delays: dict[UUID, DelayLedger] = {}
        self.queues: dict[str, QueueLedger] = {}
        """By subscription. Names of subscriptions are never reused."""
        self.subscriptions: dict[str, UUID] = {}
        self.schedules: dict[str, UUID] = {}
        self._possible: dict[str, Possible] = {name: [None] for name in names}
        self._deleted: set[UUID] = set()

    def instance(self, name: str) -> Instance | None:
        """Return the topic of a name; None if its state is uncertain."""
        state, *others = self._possible[name]
        if others or state is None or state.topic_id is None:
            return None
        return Instance(name, state.topic_id, state.partitions)

    def attempt(self, name: str, effect: Effect) -> Possible:
        """Note a change in progress. Returns the states before it, for `acknowledge` or `refuse`."""
        before = self._possible[name]
        self._possible[name] = list(dict.fromkeys([*before, *(after for state in before for after in effect(state))]))
        return before

    def acknowledge(self, name: str, before: Possible, effect: Effect, image: ClusterImage) -> None:
        """Check and note a change that succeeded. image: the broker's current image."""
        after = [after for state in before for after in effect(state)]
        if not after:
            raise InvariantBroken("NoLostTopic", f"{name} was changed, but its possible states are {before}")
        if None in after:
            self._deleted |= {state.topic_id for state in before if state is not None and state.topic_id is not None}
        self._possible[name] = after
        self._decide(name, image)

    def refuse(self, name: str, before: Possible, kind: ErrorKind) -> None:
        """Check and note a change that the broker refused. Any other error leaves the outcome uncertain."""
        if kind not in _REFUSALS:
            return
        if kind is ErrorKind.UNKNOWN_TOPIC and None not in before:
            raise InvariantBroken("NoLostTopic", f"{name} is unknown, but its possible states are {before}")
        if kind is ErrorKind.TOPIC_ALREADY_EXISTS and not any(before):
            raise InvariantBroken("NoResurrectedTopic", f"{name} exists, though it was deleted")
        self._possible[name] = before

    def observe(self, image: ClusterImage, *, is_first: bool) -> None:
        """Check an image that the broker observes. is_first: the first image after a start: the stored state."""
        for name in self._possible:
            if is_first:
                self._decide(name, image)
            elif not self._is_possible(name, image):
                raise self._broken(name, image)
        returned = self._deleted & image.names_by_id.keys()
        if returned:
            raise InvariantBroken("NoResurrectedTopic", f"image {image.seq} has deleted topics {returned}")
        self._check_kept(
            image,
            self.subscriptions,
            {subscription.name: subscription.topic_id for subscription in image.subscriptions.values()},
        )
        self._check_kept(
            image, self.schedules, {schedule.name: schedule.topic_id for schedule in image.schedules.values()}
        )

    def check_error(self, instance: Instance, kind: ErrorKind) -> None:
        """Check an error for a topic that is known to exist."""
        if kind is ErrorKind.UNKNOWN_TOPIC:
            raise InvariantBroken("NoLostTopic", f"{instance} is unknown to a producer")

    def check_record(self, instance: Instance, value: bytes) -> None:
        """Check a record that this topic served. Its value names the topic that it was sent to."""
        sent_to = value.partition(b"|")[0].decode()
        if sent_to not in ("?", str(instance.topic_id)):
            raise InvariantBroken("NoResurrectedTopic", f"{instance} serves {value!r}")

    def _decide(self, name: str, image: ClusterImage) -> None:
        """Replace the possible states by the one in the image."""
        if not self._is_possible(name, image):
            raise self._broken(name, image)
        topic = image.topics.get(name)
        self._possible[name] = [None if topic is None else _state(topic)]

    def _is_possible(self, name: str, image: ClusterImage) -> bool:
        topic = image.topics.get(name)
        if topic is None:
            return None in self._possible[name]
        return any(state is not None and state.matches(topic) for state in self._possible[name])

    def _broken(self, name: str, image: ClusterImage) -> InvariantBroken:
        possible, topic = self._possible[name], image.topics.get(name)
        invariant = "NoLostTopic" if any(possible) else "NoResurrectedTopic"
        return InvariantBroken(invariant, f"image {image.seq}: {name} is {topic}, possible are {possible}")

    @staticmethod
    def _check_kept(image: ClusterImage, acknowledged: dict[str, UUID], present: dict[str, UUID]) -> None:
        for name, topic_id in acknowledged.items():
            if topic_id in image.names_by_id and present.get(name) != topic_id:
                raise InvariantBroken("NoLostTopic", f"image {image.seq}: {name} of topic {topic_id} is lost")


def _state(topic: TopicImage) -> TopicState:
    config = tuple(sorted(topic.config.items()))
    return TopicState(topic_id=topic.topic_id, partitions=len(topic.partitions), config=config)
