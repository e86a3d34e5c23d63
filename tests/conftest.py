"""Fixtures that every kind of test may use."""

import gc
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

import pytest
from hypothesis import HealthCheck, settings

import conveyor
from conveyor.testing import Broker
from tests.kafka_python_sockets import close_what_is_given_up

pytest.register_assert_rewrite("tests.store_conformance")
close_what_is_given_up()

for module in walk_packages(conveyor.__path__, "conveyor."):
    # pytest compiles what it imports by `ast`, which Python up to 3.11.7 cannot do on two threads at once; a broker in
    # a test imports on a thread.
    if not module.name.endswith("__main__"):
        import_module(module.name)

settings.register_profile("conveyor", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("conveyor")


_QUICK = ("tests/unit/", "tests/vectors/", "tests/tidy/")
_LONG = ("tests/pipeline/", "tests/simulation/", "tests/cluster/", "tests/clients/", "tests/coordination/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make check` leaves out, also those of a whole broker, and put files of minutes first.

    A file runs in one worker: a long one that came last would keep the others waiting. They stay in the order in which
    they came: one after the other, those with Spark would want the memory and the CPU of both cores at the same time.
    """
    for item in items:
        if not item.nodeid.startswith(_QUICK) or "memory_broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))


def pytest_collection_finish() -> None:
    """Leave the collected tests out of the garbage collector's passes: that saves a seventh of the CPU."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _leaks_show_in_their_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect what the tests of a file left, so that a socket that nobody closed fails the file that opened it."""
    yield
    if not request.node.nodeid.startswith(_QUICK):
        gc.collect()


@pytest.fixture
def memory_broker() -> Iterator[Broker]:
    """A broker that keeps everything in memory."""
    with Broker(memory=True) as broker:
        yield broker
