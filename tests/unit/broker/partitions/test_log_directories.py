"""Directories of partitions that cannot be looked up."""

import pytest

from conveyor.broker.partitions.log_directories import LogDirectories
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import StorageFailure
from conveyor.log.log_parts import ExpectedLog
from conveyor.settings.tree import TopicSettings
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts


@pytest.mark.parametrize("may_be_new", [True, False])
async def test_directory_that_cannot_be_looked_up_concerns_its_partition_only(
    storage: Storage, may_be_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_parts(storage=storage) as broker:
        topic = await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        directories: LogDirectories = broker.partitions.reconciler._logs.directories

        def exists(path: str) -> bool:
            raise StorageFailure(f"{path}: Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr(storage.disk, "exists", exists)
            assert directories.has(topic, 0)
            opened = directories.open(topic, 0, TopicSettings(), ExpectedLog(may_be_new=may_be_new))
            assert isinstance(opened, StorageFailure)
