"""The pytest plugin's fixture."""

from importlib.metadata import entry_points
from urllib.request import urlopen

from confluent_kafka.admin import AdminClient

from conveyor.testing import Broker


def test_the_fixture_is_a_fresh_running_broker(conveyor_broker: Broker) -> None:
    found = AdminClient({"bootstrap.servers": conveyor_broker.bootstrap_servers}).list_topics(timeout=20)
    assert found.topics == {}
    with urlopen(f"{conveyor_broker.http_url}/healthz") as answer:
        assert answer.status == 200


def test_pytest_finds_the_plugin_by_itself() -> None:
    assert "conveyor.testing.plugin" in {each.value for each in entry_points(group="pytest11")}
