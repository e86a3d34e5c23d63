"""Every invalid request gets the error code that Kafka returns for it. The `illegal_...` modules hold the table."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from conveyor.kafka_api.registry import HANDLERS
from conveyor.testing import Broker
from tests.unit.kafka_api import (
    illegal_admin_requests,
    illegal_group_requests,
    illegal_log_requests,
    illegal_transaction_requests,
    illegal_user_requests,
)
from tests.unit.kafka_api.illegal_row import Given, Row, errors_in, filled
from tests.unit.kafka_api.illegal_world import BROKER_SETTINGS, Wire, build_world

TABLE: list[Row] = [
    *illegal_log_requests.ROWS,
    *illegal_group_requests.ROWS,
    *illegal_admin_requests.ROWS,
    *illegal_transaction_requests.ROWS,
    *illegal_user_requests.ROWS,
]
CASES = [
    pytest.param(row, version, id=f"{HANDLERS[row.api_key].__module__.rpartition('.')[2]} v{version}: {row.wrong}")
    for row in TABLE
    for version in row.versions
]


@pytest.fixture(scope="module")
def wire_and_world() -> Iterator[tuple[Wire, dict[Given, Any]]]:
    with Broker(memory=True, manual_clock=True, settings=BROKER_SETTINGS) as broker, ExitStack() as stack:
        yield stack.enter_context(Wire(broker)), build_world(broker, stack)


@pytest.mark.parametrize(("row", "version"), CASES)
def test_illegal_request_gets_the_protocols_error_code(
    wire_and_world: tuple[Wire, dict[Given, Any]], row: Row, version: int
) -> None:
    wire, world = wire_and_world
    answer = wire.ask(row.api_key, version, **filled(row.values, world))
    assert errors_in(answer) == {int(row.code)} - {0}, answer


def test_the_table_has_rows_for_every_api() -> None:
    assert {row.api_key for row in TABLE} == set(HANDLERS)


def test_the_table_has_every_request_once() -> None:
    cases = [(row.api_key, version, row.wrong) for row in TABLE for version in row.versions]
    assert len(cases) == len(set(cases))
