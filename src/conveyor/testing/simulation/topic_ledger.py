"""What was promised about topics that are created, changed and deleted all the time, under a few names.

Invariants, by the name that a failure gives:

    NoLostTopic              a topic whose creation or change was acknowledged is there as it was acknowledged, with its
                             id, partitions, settings, subscriptions and schedules, until its deletion is asked for
    NoResurrectedTopic       a topic whose deletion was acknowledged does not come back; its records are not served by
                             the next topic of its name

A change that got no reply may have happened or not: then several states are possible, until the broker starts again and
shows which of them is stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.kernel.errors import ErrorKind
from conveyor.testing.simulation.ledger import DelayLedger, InvariantBroken, LogLedger, Place, QueueLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic as it should be. topic_id: None until an image has shown it."""

    topic_id: UUID | None
    partitions: int
    config: tuple[tuple[str, str], ...]

    def fits(self, topic: TopicImage) -> bool:
        """Whether a topic of an image is this one."""
        return replace(self, topic_id=None) == replace(_state(topic), topic_id=None) and (
            self.topic_id in (None, topic.topic_id)
        )


Possible = Sequence[TopicState | None]
Effect = Callable[[TopicState | None], Possible]
"""What a change makes of a state; nothing where the broker has to refuse it."""

_REFUSALS = {ErrorKind.TOPIC_ALREADY_EXISTS, ErrorKind.UNKNOWN_TOPIC, ErrorKind.INVALID_PARTITIONS}


@dataclass(frozen=True, slots=True)
class Instance:
    """One of the topics that a name has had."""

    name: str
    topic_id: UUID
    partitions: int

    def place(self, partition: int) -> Place:
        return f"{self.name} {self.topic_id}", partition


class TopicLedger:
    """See the module's docstring. Changes of one name come one after the other."""

    def __init__(self, names: Sequence[str]) -> None:
        self.logs = LogLedger()
        self.delays: dict[UUID, DelayLedger] = {}
        self.queues: dict[str, QueueLedger] = {}
        """By subscription; the names of subscriptions are never used again."""
        self.subscriptions: dict[str, UUID] = {}
        self.schedules: dict[str, UUID] = {}
        self._possible: dict[str, Possible] = {name: [None] for name in names}
        self._deleted: set[UUID] = set()

    def instance(self, name: str) -> Instance | None:
        """The topic of a name, if it is known for sure and no change of it is under way."""
        state, *others = self._possible[name]
        if others or state is None or state.topic_id is None:
            return None
        return Instance(name, state.topic_id, state.partitions)

    def attempt(self, name: str, effect: Effect) -> Possible:
        """A change is under way. Returns the states before it, for `acknowledge` or `refuse`."""
        before = self._possible[name]
        self._possible[name] = list(dict.fromkeys([*before, *(after for state in before for after in effect(state))]))
        return before

    def acknowledge(self, name: str, before: Possible, effect: Effect, image: ClusterImage) -> None:
        """The change was carried out. image: the broker's, now."""
        after = [after for state in before for after in effect(state)]
        if not after:
            raise InvariantBroken("NoLostTopic", f"{name} was changed, though its states can be {before}")
        if None in after:
            self._deleted |= {state.topic_id for state in before if state is not None and state.topic_id is not None}
        self._possible[name] = after
        self._decide(name, image)

    def refuse(self, name: str, before: Possible, kind: ErrorKind) -> None:
        """The broker has answered that the change is not possible. Any other error leaves open what has happened."""
        if kind not in _REFUSALS:
            return
        if kind is ErrorKind.UNKNOWN_TOPIC and None not in before:
            raise InvariantBroken("NoLostTopic", f"{name} is unknown, though its states can be {before}")
        if kind is ErrorKind.TOPIC_ALREADY_EXISTS and not any(before):
            raise InvariantBroken("NoResurrectedTopic", f"{name} exists, though it was deleted")
        self._possible[name] = before

    def observe(self, image: ClusterImage, *, is_first: bool) -> None:
        """A broker shows this image. is_first: it has just loaded what is stored; nobody else changes that."""
        for name in self._possible:
            if is_first:
                self._decide(name, image)
            elif not self._fitting(name, image):
                raise self._broken(name, image)
        returned = self._deleted & image.names_by_id.keys()
        if returned:
            raise InvariantBroken("NoResurrectedTopic", f"image {image.seq} has deleted topics {returned}")
        self._check_kept(image, self.subscriptions, {each.name: each.topic_id for each in image.subscriptions.values()})
        self._check_kept(image, self.schedules, {each.name: each.topic_id for each in image.schedules.values()})

    def check_known(self, instance: Instance, kind: ErrorKind) -> None:
        """This topic, which is there for sure, was answered with this error."""
        if kind is ErrorKind.UNKNOWN_TOPIC:
            raise InvariantBroken("NoLostTopic", f"{instance} is unknown to a producer")

    def check_record(self, instance: Instance, value: bytes) -> None:
        """A record was served by this topic. Its value says which topic it was sent to, if that was known."""
        sent_to = value.partition(b"|")[0].decode()
        if sent_to not in ("?", str(instance.topic_id)):
            raise InvariantBroken("NoResurrectedTopic", f"{instance} serves {value!r}")

    def _decide(self, name: str, image: ClusterImage) -> None:
        """Of the possible states, the image shows the one that it is."""
        if not self._fitting(name, image):
            raise self._broken(name, image)
        topic = image.topics.get(name)
        self._possible[name] = [None if topic is None else _state(topic)]

    def _fitting(self, name: str, image: ClusterImage) -> bool:
        topic = image.topics.get(name)
        if topic is None:
            return None in self._possible[name]
        return any(state is not None and state.fits(topic) for state in self._possible[name])

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
