"""The examples of docs/jobs/ do what the pages say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conveyor.testing import Broker
from tests.pipeline.consoles import run_example
from tests.pipeline.pipelines import committed

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def own_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker whose topics are the example's alone."""
    monkeypatch.chdir(tmp_path)
    with Broker(memory=True) as broker:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", broker.bootstrap_servers)
        yield broker


def test_the_example_of_transform_runs(own_broker: Broker) -> None:
    run_example("transform.md")
    (large,) = committed(own_broker, "large-orders")
    assert (large.key(), large.value()) == (b"ann", b'{"id":1,"amount":250.0,"country":"NO"}')
    assert [record.value() for record in committed(own_broker, "bad-orders")] == [b"no JSON"]


def test_the_example_of_declared_pipelines_runs(own_broker: Broker, tmp_path: Path) -> None:
    run_example("declared.md")
    assert [record.key() for record in committed(own_broker, "large-orders")] == [b"ann"]
    assert len(list((tmp_path / "tables" / "orders").glob("*.parquet"))) > 0


def test_the_example_of_metrics_runs(own_broker: Broker, tmp_path: Path) -> None:
    run_example("metrics.md")
    assert (tmp_path / "orders.png").stat().st_size > 10_000
    assert list((tmp_path / "orders-metrics" / "consumers").glob("*.parquet"))
