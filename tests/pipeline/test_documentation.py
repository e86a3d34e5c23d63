"""The examples of docs/pipeline.md do what the page says, one after the other, as a reader would run them."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from conveyor.testing import Broker
from tests.pipeline.lakes import archive
from tests.pipeline.topics import Sent, create_topic, produce

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


@pytest.mark.usefixtures("spark")
def test_every_example_of_the_page_runs(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "conveyor-data") as broker:
        run_examples(broker, tmp_path)


def run_examples(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "orders", partitions=2)
    lines = range(1, 1001)
    headers = (("source", b"shop"),)
    produce(broker, "orders", [Sent(value=b"%d" % line, partition=line % 2, headers=headers) for line in lines])
    assert archive(broker, tmp_path / "lake", "orders").startswith("archived 1,000 records of orders")
    create_topic(broker, "orders-upper")
    text = PAGE.read_text().replace("127.0.0.1:9092", broker.bootstrap_servers).replace("/data/", f"{tmp_path}/")
    text = text.replace("http://127.0.0.1:8080", broker.http_url).replace(
        "./conveyor-data", str(tmp_path / "conveyor-data")
    )
    names: dict[str, object] = {}
    printed = StringIO()
    with redirect_stdout(printed):
        for example in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            exec(example, names)
    shown = re.sub(r" *\| *", "|", printed.getvalue())
    assert "|shop|1000|" in shown, "the headers, counted"
    assert "|2023-11-14|1000|" in shown, "the lake, by day"
    assert len(list((tmp_path / "orders").glob("*.parquet"))) == 2
