"""Fetch sessions (KIP-227): a client names its partitions once, then only changes; answers hold only changes, too.

    epoch in the request   effect on the session that the request names
    0                      the session ends; the answer opens a new one, whose next epoch is 1
    -1                     the session ends
    n > 0                  the session continues if n is its next epoch; 1 follows 2**31 - 1

Clients disappear without notice: a session unused for two minutes may be replaced by a new one. The number of sessions,
of the partitions of each, and of all their partitions is limited; a client that gets no session receives session id 0
and names all its partitions in every request. So does a client with a name that no topic can have: a session keeps
names as long as their topics may come to exist. This module neither waits, nor reads logs or clocks.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from conveyor.broker.fetch.fetcher import Fetched, FetchPosition
from conveyor.broker.fetch.replica_reads import NO_REPLICA
from conveyor.cluster.topic_creation import MAX_NAME_CHARACTERS
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NewId, key_of_id

FIRST_EPOCH, LAST_EPOCH = 0, -1
NO_SESSION = 0
STALE_MS = 120_000
"""A session unused for longer may be replaced by a new one."""

_MAX_INT32 = (1 << 31) - 1
_NEVER_TOLD = -1

TopicKey = str | UUID | None
"""A topic as the client names it: by name, or since Fetch v13 by id; None stands for the id of zeros."""

PartitionKey = tuple[str | bytes | None, int]


def partition_key(topic: TopicKey, partition: int) -> PartitionKey:
    return topic if isinstance(topic, str) else key_of_id(topic), partition


@dataclass(slots=True)
class SessionPartition:
    """One partition of a session: the client's position, and the offsets it last received."""

    topic: TopicKey
    position: FetchPosition
    high_watermark: int = _NEVER_TOLD
    log_start_offset: int = _NEVER_TOLD
    last_stable_offset: int = _NEVER_TOLD

    @property
    def key(self) -> PartitionKey:
        topic = self.topic  # As `partition_key`, without its calls: a request may name 20,000.
        own = topic if topic is None or isinstance(topic, str) else topic.int.to_bytes(16, "big")
        return own, self.position.partition

    def record_sent(self, fetched: Fetched) -> bool:
        """Store a result as the last one sent. Returns whether it differs from the previous; True after an error."""
        error = fetched.error is not None
        news = (
            error
            or fetched.records is not None
            or fetched.preferred_replica != NO_REPLICA
            or fetched.high_watermark != self.high_watermark
            or fetched.log_start_offset != self.log_start_offset
            or fetched.last_stable_offset != self.last_stable_offset
        )
        self.high_watermark = _NEVER_TOLD if error else fetched.high_watermark
        self.log_start_offset = fetched.log_start_offset
        self.last_stable_offset = fetched.last_stable_offset
        return news


class FetchSession:
    """The partitions of one client, in reading order. next_epoch: the epoch that its next request must have."""

    def __init__(
        self, session_id: int, by_id: bool, partitions: dict[PartitionKey, SessionPartition], now_ms: int
    ) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.next_epoch = epoch_after(FIRST_EPOCH)
        self.last_used_ms = now_ms
        self._partitions = partitions
        self._names: Mapping[Any, str] | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    def update(self, named: Iterable[SessionPartition], forgotten: Iterable[PartitionKey]) -> None:
        """Apply the partitions that a request adds, moves and forgets."""
        for partition in named:
            own = self._partitions.setdefault(partition.key, partition)
            own.position = partition.position
        for key in forgotten:
            self._partitions.pop(key, None)

    def positions(self, names: Mapping[Any, str]) -> list[FetchPosition]:
        """Return the positions in reading order.

        names: topic names by id; looked up again when the mapping is replaced.
        """
        if self.by_id and names is not self._names:
            self._names = names
            for partition in self._partitions.values():
                name = names.get(partition.topic, "")
                if name != partition.position.topic:
                    partition.position = msgspec.structs.replace(partition.position, topic=name)
        return [partition.position for partition in self._partitions.values()]

    def changes(self, results: Sequence[Fetched]) -> list[tuple[SessionPartition, Fetched]]:
        """Return the results that the client must receive. results: one for each of `positions`.

        Partitions that returned records move behind all others, so that none starves however small the answers are.
        """
        pairs = zip(self._partitions.values(), results, strict=True)
        changed = [(partition, fetched) for partition, fetched in pairs if partition.record_sent(fetched)]
        for partition, fetched in changed:
            if fetched.records is not None:
                self._partitions[partition.key] = self._partitions.pop(partition.key)
        return changed


class FetchSessions:
    """All sessions, least recently used first. new_id: returns ids that cannot be guessed."""

    def __init__(
        self, new_id: NewId, *, max_fetch_sessions: int = 1000, max_partitions: int = 500_000,
        max_session_partitions: int = 20_000,
    ) -> None:  # fmt: skip
        self._new_id = new_id
        self._max_session_partitions = max_session_partitions
        self._max_sessions = max_fetch_sessions
        self._max_partitions = max_partitions
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.partition_count = 0
        """The number of partitions of all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, partitions: dict[PartitionKey, SessionPartition], *, by_id: bool, now_ms: int) -> int:
        """Open a session with the partitions of an answer, which it keeps. Returns its id, or NO_SESSION if the limits
        are reached, or a name is none of a topic.
        """
        if not _has_names_of_topics(partitions.values()) or not self._make_room(len(partitions), now_ms):
            return NO_SESSION
        session = FetchSession(self._unused_id(), by_id, partitions, now_ms)
        self._sessions[session.session_id] = session
        self.partition_count += len(session)
        return session.session_id

    def continue_session(
        self,
        session_id: int,
        epoch: int,
        named: Iterable[SessionPartition],
        forgotten: Iterable[PartitionKey],
        *,
        by_id: bool,
        now_ms: int,
    ) -> FetchSession | None:
        """Apply a request's changes to its session. Returns the session; None if it ended without partitions.

        Raises RequestError: FETCH_SESSION_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        session = self._checked(session_id, epoch, by_id)
        named = list(named)
        if not _has_names_of_topics(named):
            self.close(session_id)
            raise _not_found(session_id)
        size = len(session)
        session.update(named, forgotten)
        self.partition_count += len(session) - size
        if not len(session):
            self.close(session_id)
            return None
        if self.partition_count > self._max_partitions or len(session) > self._max_session_partitions:
            self.close(session_id)
            raise _not_found(session_id)
        session.next_epoch = epoch_after(epoch)
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: int) -> None:
        """End a session, if it exists."""
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


def _has_names_of_topics(partitions: Iterable[SessionPartition]) -> bool:
    """Return whether all names are such that a topic may have them, as far as their memory is concerned."""
    names = (partition.topic for partition in partitions if isinstance(partition.topic, str))
    return all(len(name) <= MAX_NAME_CHARACTERS and name.isascii() for name in names)


def epoch_after(epoch: int) -> int:
    """Return the epoch of the next request."""
    return 1 if epoch == _MAX_INT32 else epoch + 1


def wrong_epoch(session: FetchSession, epoch: int) -> RequestError:
    return RequestError(
        ErrorKind.INVALID_FETCH_SESSION_EPOCH,
        f"fetch session {session.session_id} expects epoch {session.next_epoch}, not {epoch}",
    )


def _not_found(session_id: int) -> RequestError:
    return RequestError(ErrorKind.FETCH_SESSION_NOT_FOUND, f"there is no fetch session {session_id}")
