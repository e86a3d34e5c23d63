"""The pytest plugin's fixture."""

import subprocess
import sys
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


def test_the_plugin_costs_a_run_that_uses_no_broker_nothing() -> None:
    """pytest imports it in every run of an environment that has Conveyor."""
    program = "import sys, conveyor.testing.plugin\nassert 'conveyor.server' not in sys.modules, sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_names_of_the_package_are_loaded_when_they_are_used() -> None:
    import conveyor.testing

    assert all(getattr(conveyor.testing, name).__name__ == name for name in conveyor.testing.__all__)
    assert not hasattr(conveyor.testing, "Brokers")
