"""Fetch sessions: a client names its partitions once, then only what changes; it is told only what changed (KIP-227).

    epoch in the request   what happens to the session it names
    0                      it ends, and a new one is made when the answer is given: its next epoch is 1
    -1                     it ends
    n > 0                  it goes on if n is its next epoch, which then rises by one; after 2**31 - 1 comes 1

A client that is gone says nothing: its session stays until its place is wanted and it has not been used for two
minutes. So there are never more than so many sessions, and so many partitions in all of them together; who finds no
place is told session 0, and names all its partitions each time. Nothing here waits, reads or knows the time.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from conveyor.broker.fetch.fetcher import Fetched, FetchPosition
from conveyor.kernel.errors import ErrorKind, RequestError

FIRST_EPOCH, LAST_EPOCH = 0, -1
NO_SESSION = 0
STALE_MS = 120_000
"""A session that was not used for longer may lose its place to a new one."""

_MAX_INT32 = (1 << 31) - 1
_NEVER_TOLD = -1

TopicKey = str | UUID | None
"""A topic as the client names it: by name, or since Fetch v13 by id; None stands for the id of zeros."""

PartitionKey = tuple[TopicKey, int]


@dataclass(slots=True)
class SessionPartition:
    """One partition of a session: where the client reads on, and what it was told last."""

    topic: TopicKey
    position: FetchPosition
    high_watermark: int = _NEVER_TOLD
    log_start_offset: int = _NEVER_TOLD

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.position.partition

    def tell(self, fetched: Fetched) -> bool:
        """Whether this is news to the client; it is taken as told. After an error everything is."""
        error = fetched.error is not None
        news = (
            error
            or fetched.records is not None
            or fetched.high_watermark != self.high_watermark
            or fetched.log_start_offset != self.log_start_offset
        )
        self.high_watermark = _NEVER_TOLD if error else fetched.high_watermark
        self.log_start_offset = fetched.log_start_offset
        return news


class FetchSession:
    """The partitions of one client, in the order in which they are read. `next_epoch`: what its next request says."""

    def __init__(self, session_id: int, by_id: bool, partitions: Iterable[SessionPartition], now_ms: int) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.next_epoch = epoch_after(FIRST_EPOCH)
        self.last_used_ms = now_ms
        self._partitions = {each.key: each for each in partitions}
        self._names: Mapping[Any, str] | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    def update(self, named: Iterable[SessionPartition], forgotten: Iterable[PartitionKey]) -> None:
        """Take what a request adds, moves and forgets."""
        for each in named:
            known = self._partitions.setdefault(each.key, each)
            known.position = each.position
        for key in forgotten:
            self._partitions.pop(key, None)

    def positions(self, names: Mapping[Any, str]) -> list[FetchPosition]:
        """Where to read, in order. `names`: the topics' names by id, looked up again whenever it is another mapping."""
        if self.by_id and names is not self._names:
            self._names = names
            for each in self._partitions.values():
                name = names.get(each.topic, "")
                if name != each.position.topic:
                    each.position = replace(each.position, topic=name)
        return [each.position for each in self._partitions.values()]

    def changes(self, results: Sequence[Fetched]) -> list[tuple[SessionPartition, Fetched]]:
        """What of the results, one for each of `positions`, the client has to be told.

        Partitions that gave records go behind all others, so that none starves however small the answers are.
        """
        pairs = zip(self._partitions.values(), results, strict=True)
        changed = [(partition, fetched) for partition, fetched in pairs if partition.tell(fetched)]
        for partition, fetched in changed:
            if fetched.records is not None:
                self._partitions[partition.key] = self._partitions.pop(partition.key)
        return changed


class FetchSessions:
    """All sessions, least recently used first. `new_id` gives ids that nobody can guess."""

    def __init__(
        self, new_id: Callable[[], UUID], *, max_fetch_sessions: int = 1000, max_partitions: int = 500_000
    ) -> None:
        self._new_id = new_id
        self._max_sessions = max_fetch_sessions
        self._max_partitions = max_partitions
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.partition_count = 0
        """The partitions of all sessions together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, told: Sequence[SessionPartition], *, by_id: bool, now_ms: int) -> int:
        """Make a session of partitions that the client was just told of. Its id, or NO_SESSION if there is no place."""
        if not self._make_room(len(told), now_ms):
            return NO_SESSION
        session = FetchSession(self._unused_id(), by_id, told, now_ms)
        self._sessions[session.session_id] = session
        self.partition_count += len(session)
        return session.session_id

    def go_on(
        self,
        session_id: int,
        epoch: int,
        named: Iterable[SessionPartition],
        forgotten: Iterable[PartitionKey],
        *,
        by_id: bool,
        now_ms: int,
    ) -> FetchSession | None:
        """The session of a request, with what the request changes. None if that left nothing of it, and it ended.

        Raises RequestError: FETCH_SESSION_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        session = self._checked(session_id, epoch, by_id)
        size = len(session)
        session.update(named, forgotten)
        self.partition_count += len(session) - size
        if not len(session):
            self.close(session_id)
            return None
        if self.partition_count > self._max_partitions:
            self.close(session_id)
            raise _not_found(session_id)
        session.next_epoch = epoch_after(epoch)
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: int) -> None:
        """End a session, if it is there."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session)

    def _checked(self, session_id: int, epoch: int, by_id: bool) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise _not_found(session_id)
        if epoch != session.next_epoch:
            raise wrong_epoch(session, epoch)
        if by_id != session.by_id:
            raise RequestError(
                ErrorKind.FETCH_SESSION_TOPIC_ID_ERROR, "a session names its topics by id, or by name, from its start"
            )
        return session

    def _make_room(self, size: int, now_ms: int) -> bool:
        while len(self) >= self._max_sessions or self.partition_count + size > self._max_partitions:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms <= STALE_MS:
                return False
            self.close(oldest.session_id)
        return True

    def _unused_id(self) -> int:
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_id().int & _MAX_INT32
        return session_id


def epoch_after(epoch: int) -> int:
    """The epoch of the request that follows."""
    return 1 if epoch == _MAX_INT32 else epoch + 1


def wrong_epoch(session: FetchSession, epoch: int) -> RequestError:
    return RequestError(
        ErrorKind.INVALID_FETCH_SESSION_EPOCH,
        f"fetch session {session.session_id} expects epoch {session.next_epoch}, not {epoch}",
    )


def _not_found(session_id: int) -> RequestError:
    return RequestError(ErrorKind.FETCH_SESSION_NOT_FOUND, f"there is no fetch session {session_id}")
