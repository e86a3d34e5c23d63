"""The pytest plugin's fixture."""

import subprocess
import sys
from importlib.metadata import entry_points
from urllib.request import urlopen

from confluent_kafka.admin import AdminClient

from conveyor.testing import Broker


def test_the_fixture_is_a_fresh_running_broker(conveyor_broker: Broker) -> None:
    metadata = AdminClient({"bootstrap.servers": conveyor_broker.bootstrap_servers}).list_topics(timeout=20)
    assert metadata.topics == {}
    with urlopen(f"{conveyor_broker.http_url}/healthz") as answer:
        assert answer.status == 200


def test_pytest_finds_the_plugin_by_itself() -> None:
    assert "conveyor.testing.plugin" in {entry_point.value for entry_point in entry_points(group="pytest11")}


def test_the_plugin_costs_nothing_in_a_run_without_a_broker() -> None:
    """pytest imports the plugin in every run in an environment with Conveyor."""
    program = "import sys, conveyor.testing.plugin\nassert 'conveyor.server' not in sys.modules, sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_names_of_the_package_are_loaded_on_first_use() -> None:
    import conveyor.testing

    assert all(getattr(conveyor.testing, name).__name__ == name for name in conveyor.testing.__all__)
    assert not hasattr(conveyor.testing, "Brokers")
