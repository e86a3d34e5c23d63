"""franz-go: Go, its own protocol code."""

from pathlib import Path

import pytest

from conveyor.testing import Broker
from tests.clients import scenarios
from tests.clients.programs import Program
from tests.clients.records import CODECS
from tests.clients.toolchains import go_program


@pytest.fixture(scope="module")
def program() -> Program:
    return go_program()


def test_records_come_back_as_they_were_sent(program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_records(program, broker, topic, CODECS)


def test_the_death_of_the_broker_neither_loses_nor_doubles(program: Program, topic: str, tmp_path: Path) -> None:
    scenarios.check_kill(program, topic, tmp_path)


def test_offsets_by_time(program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_seek(program, broker, topic)


def test_topics_are_administered(program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_admin(program, broker, topic)


def test_groups_are_administered(program: Program, broker: Broker, topic: str) -> None:
    scenarios.check_group_admin(program, broker, topic)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_join_leave_and_die(program: Program, topic: str, protocol: str) -> None:
    scenarios.check_rebalance(program, topic, protocol)
