"""Changes of users and ACLs reach all brokers that are connected to the metadata store.

Invariants, by the names that failures report:

    ChangesArrive    the image of a broker shows each change of users or ACLs a second after its commit, if the broker,
                     its disk and its connection to the store have been sound for that second and five more

What follows from the image is promised by `simulation.clients.users.user_promises`. The five seconds are the longest
pause of a broker that could not read the store; one that has just started needs the second alone. Time is simulated,
and the delays of a story's store are added to the second.
"""

from collections import deque
from collections.abc import Callable

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.ids import NodeId
from simulation.ledger import InvariantBroken
from simulation.story_rules import StoryRules

_ARRIVES_WITHIN_S = 1.0
_LONGEST_PAUSE_S = 5.0
_LONGEST_HOPS = 10
"""Between a broker and the store: a change of its own may precede, with a commit and reads."""


class AccessWatch:
    """See the module's docstring. time_s: returns the simulated time. rules: of the store's delays."""

    def __init__(self, time_s: Callable[[], float], rules: StoryRules) -> None:
        self.broken: list[BaseException] = []
        self._time_s = time_s
        delays_ms = rules.watch_delay_ms + _LONGEST_HOPS * rules.store_delay_ms
        self._arrives_within_s = _ARRIVES_WITHIN_S + delays_ms / 1000
        self._recent: deque[tuple[float, int]] = deque()
        """When users or ACLs have changed, and the number of the image: those that may not have arrived."""
        self._due_seq = 0
        """The image that shows the last change which must have arrived."""
        self._sound_since: dict[NodeId, tuple[BrokerNode, float]] = {}
        """The process of each broker, and since when it is sound."""

    def stored(self, old: ClusterImage, new: ClusterImage) -> None:
        """Note an image that the metadata log has now."""
        if old.scram is not new.scram or old.acls is not new.acls:
            self._recent.append((self._time_s(), new.seq))

    def look(self, node_id: NodeId, node: BrokerNode | None, *, is_sound: bool) -> None:
        """Check the image of a broker. Call it often. is_sound: it serves, and it reaches the store."""
        now_s = self._time_s()
        while self._recent and self._recent[0][0] < now_s - self._arrives_within_s:
            _, self._due_seq = self._recent.popleft()
        if node is None:
            return
        process, since_s = self._sound_since.get(node_id, (None, 0.0))
        if not is_sound:
            since_s = now_s
        elif process is not node:
            since_s = now_s - _LONGEST_PAUSE_S  # It has just read the store.
        self._sound_since[node_id] = node, since_s
        seq = node.metadata.image.seq
        if since_s <= now_s - self._arrives_within_s - _LONGEST_PAUSE_S and seq < self._due_seq:
            detail = f"broker {node_id} shows image {seq}, users or ACLs have changed in {self._due_seq}"
            self.broken.append(InvariantBroken("ChangesArrive", f"{detail}, {self._arrives_within_s} s ago"))
