"""A served metadata store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.store_owner import StoreOwner


@pytest.fixture
async def store_owner(tmp_path: Path) -> AsyncIterator[StoreOwner]:
    owner = await StoreOwner(tmp_path).start()
    yield owner
    await owner.stop()
