"""The newest connection of each committer, so that no late request undoes a newer commit.

A client that gives up an OffsetCommit connects again, and may commit newer offsets before the network delivers the
first request. Within one connection requests keep their order, so a commit over an older connection than the
committer's last one is late, unless it has a newer generation or producer epoch: then another process has taken over,
and has perhaps been connected for longer. Soft state: after a change of the coordinator no older connection leads to
the new one.
"""

from collections import OrderedDict
from collections.abc import Hashable

from conveyor.groups.group_commands import NO_MEMBER, CommitOffsets
from conveyor.kernel.access.caller import NO_CONNECTION
from conveyor.kernel.errors import ErrorKind, RequestError

_MOST_COMMITTERS = 5_000


class Committers:
    """The members and producers that have committed offsets, those that have not for longest first."""

    def __init__(self) -> None:
        self._newest: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        """By committer, the generation or epoch and the connection of its last commit."""

    def heard(self, command: CommitOffsets) -> None:
        """Remember the connection of a permitted commit. Raises RequestError if the commit is late.

        A client that is no member has no identity, so its commits are taken as they come.
        """
        committer = _committer(command)
        if committer is None or command.connection == NO_CONNECTION:
            return
        generation, connection = self._newest.get(committer, (_generation(command), NO_CONNECTION))
        if _generation(command) == generation and command.connection < connection:
            raise RequestError(
                ErrorKind.COORDINATOR_LOADING, f"group '{command.group_id}': a newer connection has committed since"
            )
        self._newest[committer] = _generation(command), command.connection
        self._newest.move_to_end(committer)
        if len(self._newest) > _MOST_COMMITTERS:
            self._newest.popitem(last=False)


def _generation(command: CommitOffsets) -> int:
    return command.generation_id if command.producer is None else command.producer.producer_epoch


def _committer(command: CommitOffsets) -> Hashable | None:
    if command.producer is not None:
        return command.group_id, command.producer.producer_id
    return None if command.member_id == NO_MEMBER else (command.group_id, command.member_id)
