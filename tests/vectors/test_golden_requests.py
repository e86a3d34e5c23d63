"""What Kafka's Java client may send, however little sense it makes, is answered in the format that it expects."""

from collections.abc import Iterator

import pytest

from conveyor.testing import Broker
from tests.vectors.recorded import Golden, golden_requests, null_records
from tests.vectors.wire import ask, read_response

REQUESTS = golden_requests()
API_VERSIONS = next(each for each in REQUESTS if each.key == 18)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(memory=True) as running:
        yield running
        check_answer(running, API_VERSIONS)


def check_answer(broker: Broker, golden: Golden) -> None:
    correlation_id, _ = read_response(golden.key, golden.version, ask(broker, golden.data))
    assert correlation_id == golden.correlation_id


@pytest.mark.parametrize("golden", REQUESTS, ids=str)
def test_request_is_answered_in_its_own_format(broker: Broker, golden: Golden) -> None:
    check_answer(broker, golden)


@pytest.mark.parametrize("golden", null_records(), ids=str)
def test_null_records_close_the_connection(broker: Broker, golden: Golden) -> None:
    with pytest.raises(AssertionError, match="closed the connection"):
        ask(broker, golden.data)
