"""The links over which followers copy the partitions that this broker leads.

    a follower dials -> accepted; an older link of the same broker ends
    records written -> pushed at the end of the tick; high watermark risen -> sent with the next records, or soon after

A follower is checked for each partition that it asks for: the image must show this start of it as a replica.
"""

from functools import partial

from conveyor.broker.partitions.loop_tick import LoopTick
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.replicas.catch_up_throttle import CatchUpThrottle
from conveyor.broker.services import Services
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerIdentity, PeerLink
from conveyor.kernel.ports import Bytes
from conveyor.replication.partition import Partition
from conveyor.replication.streams.frames import Follow, FollowRefusal
from conveyor.replication.streams.leader_end import LeaderEnd, Reported

_OFFSETS_DELAY_MS = 5
"""A high watermark waits this long for records to be sent with."""


class LinksFromFollowers:
    """See the module's docstring. reported: see `LeaderEnd`."""

    def __init__(self, services: Services, partitions: PartitionTable, tick: LoopTick, reported: Reported) -> None:
        self._metadata = services.metadata
        self._partitions = partitions
        self._tick = tick
        self._reported = reported
        self._links: dict[NodeId, _LinkFromFollower] = {}
        self._ended_bytes = 0
        self.catch_up_throttle = CatchUpThrottle(services)
        self._offsets = Alarm(services.clock, self._push_offsets)
        self._throttled = Alarm(services.clock, self._push_all)
        services.metadata.listen(self._observe)

    def accept(self, link: PeerLink) -> "_LinkFromFollower":
        """Serve a follower. Its earlier link, if any, ends.

        Raises ProtocolViolation if only the earlier one is of a registered start: the other may be one that is about to
        refuse to start, beside a running broker of its id.
        """
        earlier = self._links.get(link.peer.node_id)
        if earlier is not None:
            if self._is_registered(earlier.link.peer) and not self._is_registered(link.peer):
                raise ProtocolViolation("this start of the broker is not registered, and another one is connected")
            earlier.link.close("the broker has opened another link")
        ends = LeaderEnd(link.peer.node_id, partial(self._find, link.peer), self._reported, self.catch_up_throttle)
        end = self._links[link.peer.node_id] = _LinkFromFollower(link, ends, self, self._tick)
        return end

    def stop(self) -> None:
        self._offsets.cancel()
        self._throttled.cancel()
        for end in list(self._links.values()):
            end.link.close("the broker stops")

    @property
    def sent_bytes(self) -> int:
        """The bytes of records sent over all links."""
        return self._ended_bytes + sum(end.stream.sent_bytes for end in self._links.values())

    def follows(self, node: NodeId, partition: Partition) -> bool:
        """Return whether a broker is connected and copies a partition."""
        end = self._links.get(node)
        return end is not None and end.stream.follows(partition)

    def written(self, partition: Partition) -> None:
        """A led partition has more records."""
        for end in self._links.values():
            if end.stream.written(partition):
                end.push_soon()

    def committed(self, partition: Partition) -> None:
        """The high watermark, the log start or the replicas of a led partition may have changed."""
        marked = [end.stream.has_offsets(partition) for end in self._links.values()]
        if any(marked) and not self._offsets.is_set:
            self._offsets.after(_OFFSETS_DELAY_MS)

    def changed(self, partition: Partition) -> None:
        """A partition has another role or epoch, or was closed."""
        for end in self._links.values():
            if end.stream.changed(partition):
                end.push_soon()

    def ended(self, end: "_LinkFromFollower") -> None:
        self._ended_bytes += end.stream.sent_bytes
        if self._links.get(end.link.peer.node_id) is end:
            del self._links[end.link.peer.node_id]

    def push_later(self) -> None:
        """Push again when the throttle opens."""
        if not self._throttled.is_set:
            self._throttled.after(max(1, self.catch_up_throttle.wait_ms))

    def _push_all(self) -> None:
        for end in list(self._links.values()):
            end.push_soon()

    def _push_offsets(self) -> None:
        for end in list(self._links.values()):
            end.push_offsets()

    def _find(self, peer: PeerIdentity, node: NodeId, follow: Follow) -> Partition | FollowRefusal:
        image = self._metadata.image
        topic = image.topic_by_id(follow.topic_id)
        if topic is None or follow.partition >= len(topic.partitions):
            return FollowRefusal.UNKNOWN_TOPIC
        if not self._is_registered(peer) or node not in topic.partitions[follow.partition].replicas:
            return FollowRefusal.NOT_A_REPLICA
        return self._partitions.get(topic.name, follow.partition) or FollowRefusal.NOT_LEADER

    def _is_registered(self, peer: PeerIdentity) -> bool:
        broker = self._metadata.image.brokers.get(peer.node_id)
        return broker is not None and broker.incarnation == peer.incarnation

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        """End the links of registrations that have ended.

        The image may never have shown such a registration, because the broker lost it at once. A link of a registration
        that the image shows later is ended, too, and its follower dials again.
        """
        if old.brokers is new.brokers:
            return
        for node, end in list(self._links.items()):
            before, after = old.brokers.get(node), new.brokers.get(node)
            ended = None if before is None else before.incarnation
            current = None if after is None else after.incarnation
            if current not in (ended, end.link.peer.incarnation):
                end.link.close("the broker has registered again")


class _LinkFromFollower:
    """The end of one follower's link."""

    def __init__(self, link: PeerLink, stream: LeaderEnd, owner: LinksFromFollowers, tick: LoopTick) -> None:
        self.link = link
        self.stream = stream
        self._owner = owner
        self._tick = tick
        self._is_pushing = False

    def received(self, frame: Bytes) -> None:
        self.stream.received(frame)
        self.push_soon()

    def ended(self, reason: str) -> None:
        self._owner.ended(self)

    def push_soon(self) -> None:
        """Send what there is at the end of the tick."""
        if not self._is_pushing:
            self._is_pushing = True
            self._tick.add_output(self._push)

    def push_offsets(self) -> None:
        while (parts := self.stream.offsets_frame()) is not None:
            self.link.send(*parts)

    def _push(self) -> None:
        self._is_pushing = False
        self._send_answers()
        while (parts := self.stream.data_frame()) is not None:
            self.link.send(*parts)
        self._send_answers()
        if self.stream.is_throttled:
            self._owner.push_later()

    def _send_answers(self) -> None:
        for answer in self.stream.answers():
            self.link.send(answer)
