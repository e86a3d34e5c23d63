"""Index files are damaged, and while a thread rebuilds an index, its log is changed: it reads like a sound one.

Each story is told of two logs. Only one of them is damaged; everything else happens to both. PROPERTY_EXAMPLES in the
environment says how many stories are told; 200 by default.
"""

import os
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.kernel.errors import ReadLater
from conveyor.log.compaction.key_compaction import compact
from conveyor.log.log import Log
from conveyor.log.segments.lookup import find_newest, find_time
from conveyor.log.segments.segment_indexes import IndexUnavailable, StoredIndexes
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import DIRECTORY, NOW_MS, all_below, contents, flush, open_topic_log, segment_file

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "200"))
pytestmark = pytest.mark.timeout(max(600, EXAMPLES))
TOPIC = TopicSettings(
    segment_bytes=400_000, index_interval_bytes=4096, cleanup_policy="compact,delete", min_cleanable_dirty_ratio=0
)
Change = Callable[[Log, MemoryDisk], None]


class InterruptedDisk(MemoryDisk):
    """A disk that calls back, once, when a file is about to be read."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupt: tuple[str, int, Callable[[], None]] | None = None
        """The file, how often it is read before, and the callback."""

    def check(self, operation: str, path: str) -> None:
        super().check(operation, path)
        if self.interrupt is not None and (operation, path) == ("read", self.interrupt[0]):
            path, reads, callback = self.interrupt
            self.interrupt = (path, reads - 1, callback) if reads else None
            if not reads:
                callback()


class Story:
    """The damaged log and its sound twin."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.disk, self.sound_disk = InterruptedDisk(), MemoryDisk()
        self.log, self.sound = open_topic_log(self.disk, TOPIC), open_topic_log(self.sound_disk, TOPIC)
        self.append(chance.randint(1, 60))
        if chance.random() < 0.8:
            self.stop_and_start()
        if chance.random() < 0.5:
            self.append(chance.randint(1, 20))

    def append(self, count: int) -> None:
        chance = self.chance
        for _ in range(count):
            key, value = b"%d" % chance.randint(0, 9), chance.randbytes(8) * chance.randint(1, 4_000)
            content = encode_batch([(NOW_MS + chance.randint(0, 100), key, value, ())])
            for log in (self.log, self.sound):
                log.append(own_batch(content), 0, NOW_MS)
        for log in (self.log, self.sound):
            flush(log)

    def stop_and_start(self) -> None:
        self.log.close()
        self.sound.close()
        self.log, self.sound = open_topic_log(self.disk, TOPIC), open_topic_log(self.sound_disk, TOPIC)

    def damage(self) -> None:
        """Damage index files that were not used yet."""
        chance = self.chance
        for segment in self.log.segments.all:
            for suffix in ("index", "timeindex"):
                path = segment_file(segment.base_offset, suffix)
                if chance.random() < 0.5 or not self.disk.exists(path):
                    continue
                content = self.disk.read(path)
                if chance.random() < 0.3:
                    self.disk.remove(path)
                elif content and chance.random() < 0.5:
                    self.disk.flip(path, chance.randrange(len(content)), chance.randrange(8))
                else:
                    self.disk.write_atomic(path, content[:-1] if chance.random() < 0.5 else content + bytes(9))

    def look_up(self) -> None:
        """A few reads, which find some indexes damaged."""
        for _ in range(self.chance.randint(0, 3)):
            offset = self.chance.randint(self.log.log_start_offset, self.log.log_end_offset)
            try:
                self.log.read(offset, 1000, self.log.written_offset, at_least_one=True)
            except IndexUnavailable:
                continue

    def change(self) -> None:
        """Change both logs, unless that needs an index which is not available."""
        change = self.chance.choice([self.truncation, self.truncation, self.trim, self.compaction, self.append_more])()
        try:
            change(self.log, self.disk)
        except IndexUnavailable:
            return
        change(self.sound, self.sound_disk)

    def truncation(self) -> Change:
        offset = self.chance.randint(self.log.log_start_offset, self.log.log_end_offset)

        def truncate(log: Log, _: MemoryDisk) -> None:
            log.truncation.truncate_to(offset)
            job = log.truncation.begin(NOW_MS)
            if job is not None:
                log.truncation.complete(job, job.run())

        return truncate

    def trim(self) -> Change:
        offset = self.chance.randint(self.log.log_start_offset, self.log.log_end_offset)

        def trim(log: Log, _: MemoryDisk) -> None:
            log.start.trim(offset).run()
            log.start.complete_trim()

        return trim

    def compaction(self) -> Change:
        def compact_log(log: Log, disk: MemoryDisk) -> None:
            plan = log.compaction.plan(all_below(log.log_end_offset), NOW_MS, 1_000)
            if plan is not None:
                result = compact(disk, plan)
                job = log.compaction.begin_swap(result)
                assert job is not None
                log.compaction.complete_swap(result, job.run())

        return compact_log

    def append_more(self) -> Change:
        contents = [
            encode_batch([(NOW_MS + self.chance.randint(0, 100), b"1", self.chance.randbytes(20_000), ())])
            for _ in range(self.chance.randint(1, 25))
        ]

        def append(log: Log, _: MemoryDisk) -> None:
            for content in contents:
                log.append(own_batch(content), 0, NOW_MS)
            flush(log)

        return append

    def prepare(self, indexes: StoredIndexes, path: str) -> None:
        """Prepare indexes, and change the log when the thread has read a part of their segment, or none of it."""
        self.disk.interrupt = path, self.chance.randint(0, 30), self.change
        try:
            indexes.prepare()
        except ReadLater:  # The segment was cut.
            assert self.disk.interrupt is None
        self.disk.interrupt = None

    def check(self) -> None:
        assert self.read(lambda: contents(self.log)) == contents(self.sound)
        limit, start = self.log.written_offset, self.log.log_start_offset
        segments, sound = self.log.segments, self.sound.segments
        for at_ms in range(NOW_MS, NOW_MS + 102, 3):
            found = find_time(sound.all, at_ms, limit, start)
            assert self.read(partial(find_time, segments.all, at_ms, limit, start)) == found
        assert self.read(lambda: find_newest(segments.all, limit, start)) == find_newest(sound.all, limit, start)

    def read(self, read: Callable[[], object]) -> object:
        """The result of a read, which is repeated whenever an index had to be prepared for it."""
        for _ in range(2 * len(self.log.segments.all) + 1):
            try:
                return read()
            except IndexUnavailable as unavailable:
                unavailable.indexes.prepare()
        raise AssertionError("an index was prepared, and is not available")

    def no_file_is_left_over(self) -> None:
        missing = set(self.sound_disk.list(DIRECTORY)) - set(self.disk.list(DIRECTORY))
        assert set(self.disk.list(DIRECTORY)) <= set(self.sound_disk.list(DIRECTORY))
        assert all(name.endswith("index") for name in missing)


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_log_with_damaged_indexes_reads_like_its_sound_twin(seed: int) -> None:
    story = Story(Random(seed))
    story.damage()
    story.look_up()
    segment = story.chance.choice(story.log.segments.all)
    try:
        segment.indexes.pair()
    except IndexUnavailable as unavailable:
        story.prepare(unavailable.indexes, segment.files.path("log"))
    story.check()
    story.change()
    story.check()
    story.no_file_is_left_over()
    if story.chance.random() < 0.5:
        story.stop_and_start()
    else:
        story.log = open_topic_log(story.disk.process_crash(), TOPIC)
    story.check()
