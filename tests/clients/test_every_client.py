"""What every client has to get right, whatever its language; kcat, which is no library, does its share in test_kcat."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conveyor.testing import Broker
from tests.clients import scenarios
from tests.clients.all_clients import CLIENTS, Client
from tests.clients.programs import Program
from tests.clients.rebalances import QUICK_GROUPS, Group, check_rebalance
from tests.clients.records import CODECS
from tests.clients.stored_codecs import check_stored_codecs
from tests.clients.throttling import check_quotas, still_broker


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def broker(data_dir: Path) -> Iterator[Broker]:
    """A broker that hears of its members often, and compacts at once."""
    with Broker(data_dir, settings=QUICK_GROUPS | scenarios.QUICK_COMPACTION) as running:
        yield running


def test_records_come_back_as_they_were_sent(program: Program, broker: Broker, topic: str, data_dir: Path) -> None:
    scenarios.check_records(program, broker, topic, CODECS)
    check_stored_codecs(data_dir, topic, CODECS)


def test_the_death_of_the_broker_neither_loses_nor_doubles(program: Program, topic: str, tmp_path: Path) -> None:
    scenarios.check_kill(program, topic, tmp_path)


def test_only_committed_records_are_read(program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_transaction(program, broker, topic)


def test_offsets_by_time(program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_seek(program, broker, topic)


def test_topics_are_administered(client: Client, program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_admin(program, broker, topic, client.unknown_topic_steps)


def test_groups_are_administered(client: Client, program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_group_admin(program, broker, topic, client.unknown_group_steps)


def test_what_compaction_has_left_is_read(program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_compaction(program, broker, topic)


def test_a_client_is_held_to_its_quota(client: Client, program: Program, topic: str) -> None:
    with still_broker() as broker:
        check_quotas(program, broker, topic, is_told=client.is_told)


@pytest.mark.parametrize(
    ("client", "protocol"),
    [pytest.param(each, protocol, id=f"{each.name}-{protocol}") for each in CLIENTS for protocol in each.protocols],
)
def test_members_join_leave_and_die(client: Client, broker: Broker, topic: str, protocol: str) -> None:
    with Group(client.program(), broker, topic, protocol) as group:
        check_rebalance(group, broker, topic, "consumer" if protocol == "consumer" else "classic")
