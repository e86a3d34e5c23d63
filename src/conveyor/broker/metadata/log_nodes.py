"""Reads and writes the nodes of the metadata log, for `Metadata`. See `conveyor.cluster.metadata_log` for the nodes.

Entries and snapshots that a newer snapshot replaces are removed, except those since the last snapshot but one. A reader
that was slower than that finds a node missing, and begins again with the newest head.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor

from conveyor.cluster.changes import Change, fold, whole_image
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.metadata_log import (
    ENTRIES_PATH,
    HEAD_PATH,
    SNAPSHOTS_PATH,
    LogEntry,
    LogHead,
    chunk_path,
    decode_chunk,
    decode_entry,
    decode_head,
    encode_entry,
    encode_head,
    encode_snapshot,
    entry_path,
    snapshot_path,
)
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NewId
from conveyor.kernel.ports import ABSENT, DeleteNode, MetadataStore, PutNode, StoreOperation, Versioned

_READS_AT_ONCE = 32
_DELETES_AT_ONCE = 200


class NodeMissing(StorageFailure):
    """A node of the log is missing. If the log has a newer snapshot by now, it was replaced."""


class LogNodes:
    """See the module's docstring. Every method raises StorageFailure.

    bytes_read: the size of all entries that were read.
    """

    def __init__(self, store: MetadataStore, threads: Executor, new_id: NewId) -> None:
        self.bytes_read = 0
        self._store = store
        self._threads = threads
        self._new_id = new_id

    async def head(self, changed: Callable[[], None] | None = None) -> Versioned | None:
        """Return the node of the head, and watch it."""
        return await self._store.get(HEAD_PATH, changed)

    async def image(self, head: LogHead) -> ClusterImage:
        """Return the image at the end of the log: the snapshot and the entries after it. Raises NodeMissing."""
        image = ClusterImage()
        for number in range(head.chunks):
            path = chunk_path(head.snapshot, number)
            node = await self._store.get(path)
            if node is None:
                raise NodeMissing(f"metadata store: node {path} is missing")
            image = fold(image, decode_chunk(path, node.value), head.snapshot)
        async for seq, changes in self.entries(head.snapshot, head.seq):
            image = fold(image, changes, seq)
        return image

    async def entries(self, after_seq: int, last_seq: int) -> AsyncIterator[tuple[int, Sequence[Change]]]:
        """Return the entries after a number, in order. Raises NodeMissing."""
        for first in range(after_seq + 1, last_seq + 1, _READS_AT_ONCE):
            seqs = range(first, min(first + _READS_AT_ONCE, last_seq + 1))
            for seq, entry in zip(seqs, await asyncio.gather(*map(self._entry, seqs)), strict=True):
                if entry is None:
                    raise NodeMissing(f"metadata store: entry {seq} of the metadata log is missing")
                yield seq, entry.changes

    async def append(
        self, head: Versioned, changes: Sequence[Change], controller_epoch: int, *checks: StoreOperation
    ) -> bool:
        """Write one entry after this head. Returns False if another writer was first, or a check has failed.

        controller_epoch: of the writer, 0 if it does not act as the controller. If the reply is lost, the entry's batch
        id tells who has written it: further entries may follow it by then.
        """
        before, batch = decode_head(head.value), self._new_id()
        seq = before.seq + 1
        after = LogHead(seq=seq, snapshot=before.snapshot, chunks=before.chunks, batch=batch)
        entry = encode_entry(LogEntry(controller_epoch=controller_epoch, changes=tuple(changes), batch=batch))
        put_head = PutNode(HEAD_PATH, encode_head(after), head.version)
        try:
            return await self._store.commit(*checks, PutNode(entry_path(seq), entry), put_head) is not None
        except StorageFailure:
            await self._store.sync()
            written = await self._entry(seq)
            if written is None:
                raise
            return written.batch == batch

    async def begin(self) -> bool:
        """Create the log with an empty snapshot. Returns False if another writer has created it, or may have."""
        parts = encode_snapshot(())
        head = LogHead(seq=0, snapshot=0, chunks=len(parts), batch=self._new_id())
        chunks = [PutNode(chunk_path(0, number), part) for number, part in enumerate(parts)]
        return await self._put_head(head, ABSENT, *chunks)

    async def write_snapshot(self, head: Versioned, image: ClusterImage, *checks: StoreOperation) -> bool:
        """Store the image at the end of the log as its snapshot, then remove the nodes that are not needed any more.

        Returns False, and leaves nodes that the next snapshot removes, if the log has grown meanwhile.
        """
        before = decode_head(head.value)
        parts = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: encode_snapshot(whole_image(image))
        )
        for number, part in enumerate(parts):
            if await self._store.commit(*checks, PutNode(chunk_path(image.seq, number), part)) is None:
                return False
        after = LogHead(seq=image.seq, snapshot=image.seq, chunks=len(parts), batch=self._new_id())
        if not await self._put_head(after, head.version, *checks):
            return False
        await self._trim(before.snapshot)
        return True

    async def _put_head(self, head: LogHead, version: int, *operations: StoreOperation) -> bool:
        """Write the head with other nodes. After a failure, read back whether it is there."""
        try:
            return await self._store.commit(*operations, PutNode(HEAD_PATH, encode_head(head), version)) is not None
        except StorageFailure:
            await self._store.sync()
            present = await self.head()
            if present is None or decode_head(present.value).batch != head.batch:
                raise
            return True

    async def _entry(self, seq: int) -> LogEntry | None:
        node = await self._store.get(entry_path(seq))
        if node is None:
            return None
        self.bytes_read += len(node.value)
        return decode_entry(seq, node.value)

    async def _trim(self, old_snapshot: int) -> None:
        """Remove entries and snapshots before the last snapshot but one, which another broker may still read."""
        snapshots = [f"{SNAPSHOTS_PATH}/{name}" for name in await self._store.children(SNAPSHOTS_PATH)]
        entries = [f"{ENTRIES_PATH}/{name}" for name in await self._store.children(ENTRIES_PATH)]
        needless = [path for path in snapshots if path < snapshot_path(old_snapshot)]
        needless += [path for path in entries if path <= entry_path(old_snapshot)]
        for first in range(0, len(needless), _DELETES_AT_ONCE):
            await self._store.commit(*map(DeleteNode, needless[first : first + _DELETES_AT_ONCE]))
