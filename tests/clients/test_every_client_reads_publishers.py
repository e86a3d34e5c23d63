"""Every client reads batches of which the broker says that it has named their publishers, by a bit of its own."""

from base64 import b64encode
from collections.abc import Iterator

import pytest

from conveyor.testing import Broker
from tests.clients import scenarios
from tests.clients.programs import Program
from tests.clients.rest_client import Rest
from tests.clients.test_rest_users import ALICE, set_password


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Yield a broker with the user alice, whom HTTP clients have to be."""
    with Broker(memory=True, settings={"network.http_users": True}) as running:
        set_password(running, "alice", "pass:wörd")
        yield running


def test_batch_with_publishers_is_read(program: Program, broker: Broker, topic: str) -> None:
    scenarios.make_topic(broker.bootstrap_servers, topic, 1)
    rest = Rest(broker)
    messages = [{"payload": str(number), "headers": {"a": "b"}} for number in range(10)]
    assert rest.ask("POST", f"/topics/{topic}/messages:batch", {"messages": messages}, headers=ALICE).status == 200
    rest.close()
    read = program.run("read", broker.bootstrap_servers, topic)
    assert [line["value"] for line in read] == [b64encode(b"%d" % number).decode() for number in range(10)]
    names = {"a": "Yg==", "conveyor-publisher": b64encode(b"User:alice").decode()}
    assert all({header["name"]: header["value"] for header in line["headers"]} == names for line in read)
