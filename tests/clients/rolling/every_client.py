"""The conformance scenarios of every client, while one of three brokers is being restarted: `make rolling`.

A restart comes at the beginning of each scenario, and every 30 s.

Two scenarios stay with one broker. Its death is `LeaderMoves` here; and rates, which a broker counts anew when it
starts, cannot be measured across restarts. Applications that lose their connection in the middle of a step repeat their
work, and so do the tests: with a fresh topic, and only after the client itself has reported a failure. A wrong result
is repeated only where brokers may differ for a moment: after administrative changes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.clients import scenarios
from tests.clients.all_clients import CLIENTS, Client
from tests.clients.programs import Program, ProgramFailed
from tests.clients.rebalances import QUICK_GROUPS, Group, check_rebalance
from tests.clients.records import CODECS
from tests.clients.rolling.all_moves import check_moves
from tests.clients.rolling.rolling_cluster import RollingCluster

EVERY_S = 30
RESTARTS = 8
ATTEMPTS = 5

# A connection through the brokers' proxies may be half open when its broker is killed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Play(Protocol):
    """Plays a scenario, which is given the name of a topic, until the client reports no failure. repeated: which
    failures are those.
    """

    def __call__(self, check: Callable[[str], None], repeated: type[AssertionError] = ProgramFailed) -> None: ...


@pytest.fixture(scope="module")
def still_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RollingCluster]:
    """A cluster that nobody restarts yet."""
    settings = QUICK_GROUPS | scenarios.QUICK_COMPACTION
    cluster = RollingCluster(tmp_path_factory.mktemp("rolling"), EVERY_S, settings)
    try:
        yield cluster.start()
    finally:
        print(f"{cluster.restarts_count} restarts")
        cluster.end()


@pytest.fixture
def cluster(still_cluster: RollingCluster) -> Iterator[RollingCluster]:
    with still_cluster:
        yield still_cluster


@pytest.fixture
def play(cluster: RollingCluster, topic: str) -> Play:
    def play(check: Callable[[str], None], repeated: type[AssertionError] = ProgramFailed) -> None:
        for attempt in range(1, ATTEMPTS):
            try:
                return check(f"{topic}-{attempt}")
            except repeated as failure:
                print(f"attempt {attempt}: {failure}")
            cluster.await_in_sync()
        return check(f"{topic}-{ATTEMPTS}")

    return play


def test_clients_follow_their_leaders(tmp_path: Path) -> None:
    """The brokers are others than for the scenarios, and more patient with silent members."""
    clients = [(client, protocol) for client in CLIENTS if client.follows_leaders for protocol in client.protocols]
    cluster = RollingCluster(tmp_path, EVERY_S)
    try:
        check_moves(cluster.start(), clients, RESTARTS, with_kcat=True)
    finally:
        cluster.end()


def test_records_come_back_as_they_were_sent(play: Play, program: Program, cluster: RollingCluster) -> None:
    play(lambda topic: scenarios.check_records(program, cluster, topic, CODECS))


def test_offsets_by_time(play: Play, program: Program, cluster: RollingCluster) -> None:
    play(lambda topic: scenarios.check_seek(program, cluster, topic))


def test_topics_are_administered(play: Play, client: Client, program: Program, cluster: RollingCluster) -> None:
    def check(topic: str) -> None:
        scenarios.check_admin(program, cluster, topic, client.unknown_topic_steps)

    # The step after a change may ask a broker that has yet to learn of it.
    play(check, repeated=AssertionError)


def test_groups_are_administered(play: Play, client: Client, program: Program, cluster: RollingCluster) -> None:
    def check(topic: str) -> None:
        scenarios.check_group_admin(program, cluster, topic, client.unknown_group_steps)

    play(check, repeated=AssertionError)


def test_what_compaction_has_left_is_read(play: Play, program: Program, cluster: RollingCluster) -> None:
    play(lambda topic: scenarios.check_compaction(program, cluster, topic))


@pytest.mark.parametrize(
    ("client", "protocol"),
    [pytest.param(each, protocol, id=f"{each.name}-{protocol}") for each in CLIENTS for protocol in each.protocols],
)
def test_members_join_leave_and_die(play: Play, client: Client, cluster: RollingCluster, protocol: str) -> None:
    def check(topic: str) -> None:
        with Group(client.program(), cluster, topic, protocol) as group:
            check_rebalance(group, cluster, topic, "consumer" if protocol == "consumer" else "classic")

    play(check)
