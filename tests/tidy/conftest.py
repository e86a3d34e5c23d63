"""The tests of the tree run in one process, which parses each file once."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "tidy":
            item.add_marker(pytest.mark.xdist_group("tidy"))
