"""schemathesis asks a broker what its openapi.json allows, and what it does not: the answers have to be as it says."""

import re
from typing import Any

import pytest
import schemathesis
from hypothesis import settings
from schemathesis.config import SchemathesisConfig

from conveyor.http_api.application import ENDPOINTS
from conveyor.http_api.ops.description import rest_document
from conveyor.testing import Broker
from tests.clients.rest_client import Rest

NAMES = {"topic": "orders", "subscription": "billing", "schedule": "nightly", "message_id": "0-0"}
"""What is there."""
CHECKS = {
    # What only the broker can know to be wrong, such as a filter's grammar, is refused though the schema takes it.
    "positive_data_acceptance": {"enabled": False},
    "negative_data_rejection": {"expected-statuses": [400, 404, 409, 413, 422]},
}

schema = schemathesis.openapi.from_dict(
    rest_document(ENDPOINTS), config=SchemathesisConfig.from_dict({"checks": CHECKS})
)


@schema.hook
def map_path_parameters(_context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Half of the requests are about things that are there."""
    if path_parameters is None or len(str(path_parameters)) % 2:
        return path_parameters
    return {name: NAMES[name] for name in path_parameters}


@schema.hook
def map_query(_context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Nobody waits for long."""
    if query and re.fullmatch("[0-9]+(ms|s|m|h)", str(query.get("wait", ""))):
        return {**query, "wait": "1ms"}
    return query


@schema.hook
def map_body(_context: Any, body: Any) -> Any:
    """No topic has more partitions than can be created and sealed in the time of a test, unless that is refused."""
    if isinstance(body, dict) and isinstance(count := body.get("partitions"), int) and 20 < count <= 100_000:
        return {**body, "partitions": 20}
    return body


@pytest.fixture
def _things(broker: Broker) -> None:
    """What requests may be about, made anew where one of them has deleted it."""
    rest = Rest(broker)
    rest.post("/topics", {"name": "orders"})
    rest.post("/topics/orders/subscriptions", {"name": "billing", "start": "earliest"})
    rest.post("/topics/orders/messages", b"x")
    rest.post("/schedules", {"name": "nightly", "topic": "orders", "cron": "0 3 * * *"})
    rest.close()


@pytest.mark.usefixtures("_things")
@schema.parametrize()
@settings(max_examples=20)
def test_answers_are_as_the_document_says(case: schemathesis.Case[Any], broker: Broker) -> None:
    case.call_and_validate(base_url=broker.http_url)


def test_document_is_the_one_that_the_broker_shows(broker: Broker) -> None:
    rest = Rest(broker)
    assert rest.get("/openapi.json").json == rest_document(ENDPOINTS)
    rest.close()
