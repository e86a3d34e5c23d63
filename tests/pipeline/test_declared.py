"""Declared pipelines: the checks before a run, runs, their progress, and their end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.testing import Broker
from pyspark_conveyor.lake.lake_table import read_lake
from tests.pipeline.pipelines import pipeline, run_file, values
from tests.pipeline.topics import create_topic, delete_topic, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 240
PIPELINE = """
name = "numbers"
checkpoint = "checkpoint"

[sources.numbers]
topic = "TOPIC"
format = "text"
max_records = 100

[steps.doubled]
sql = "SELECT CAST(value AS LONG) * 2 AS value FROM numbers"

[sinks.topic]
step = "doubled"
topic = "TOPIC-out"
"""
TABLE = '\n[sinks.files]\nstep = "doubled"\ntable = "files"\n'


@pytest.fixture
def file(broker: Broker, topic: str, tmp_path: Path) -> Path:
    for name in (topic, f"{topic}-out"):
        create_topic(broker, name)
    path = tmp_path / "numbers.toml"
    path.write_text(PIPELINE.replace("TOPIC", topic))
    return path


def edit(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def refusal(broker: Broker, file: Path) -> str:
    with pytest.raises(ClientError) as raised:
        run_file(broker, file)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "in time"
        time.sleep(0.05)


@pytest.mark.usefixtures("spark")
def test_a_run_goes_on_where_the_last_one_ended(broker: Broker, topic: str, file: Path) -> None:
    file.write_text(file.read_text() + TABLE)
    produce(broker, topic, numbered(range(150)))
    assert run_file(broker, file).splitlines() == [
        "numbers finished: 150 records read for topic",
        "numbers finished: 150 records read for files",
    ]
    produce(broker, topic, numbered(range(150, 200)))
    assert "50 records read for files" in run_file(broker, file)
    expected = sorted(2 * number for number in range(200))
    assert sorted(map(int, values(broker, f"{topic}-out"))) == expected
    written = ds.dataset(list((file.parent / "files").glob("*.parquet"))).to_table()
    assert sorted(written.column("value").to_pylist()) == expected
    shown = json.loads(pipeline("status", str(file), "--json"))
    assert (shown["state"], shown["queries"]["files"]["records"]) == ("finished", 50)
    assert "numbers finished, " in pipeline("status", str(file.parent / "checkpoint"))


def test_a_lake_takes_the_records_of_a_source_once_the_file_is_right(
    spark: "SparkSession", broker: Broker, topic: str, file: Path
) -> None:
    edit(file, f'topic = "{topic}-out"', 'lake = "lake"')
    edit(file, 'step = "doubled"', 'step = "numbers"')
    edit(file, 'format = "text"', "")
    assert 'cannot cast "BINARY" to "BIGINT"' in refusal(broker, file)
    edit(file, "CAST(value AS LONG) * 2 AS value", "*")
    edit(file, "[sources.numbers]", "[sources.records]")
    edit(file, "FROM numbers", "FROM records")
    edit(file, 'step = "numbers"', 'step = "records"')
    produce(broker, topic, numbered(range(10)))
    run_file(broker, file)
    produce(broker, topic, numbered(range(10, 20)))
    run_file(broker, file)
    rows = read_lake(spark, file.parent / "lake").collect()
    assert sorted(int(row.value) for row in rows) == list(range(20))


@pytest.mark.usefixtures("spark")
def test_a_deleted_checkpoint_does_not_repeat_the_results_of_a_stream_with_an_id(
    broker: Broker, topic: str, file: Path
) -> None:
    edit(file, "[sinks.topic]", f'[sinks.topic]\nstream_id = "{topic}"')
    produce(broker, topic, numbered(range(20)))
    run_file(broker, file)
    shutil.rmtree(file.parent / "checkpoint")
    assert "sinks.topic: the stream has written its batches up to 0 from another checkpoint" in refusal(broker, file)
    assert len(values(broker, f"{topic}-out")) == 20


@pytest.mark.usefixtures("spark")
def test_a_checkpoint_that_does_not_fit_is_refused(broker: Broker, topic: str, file: Path) -> None:
    file.write_text(file.read_text() + TABLE)
    run_file(broker, file)
    original = file.read_text()
    other = f"{topic}-other"
    create_topic(broker, other)
    for old, new, message in (
        ('name = "numbers"', 'name = "letters"', "belongs to pipeline 'numbers', not 'letters'"),
        (f'topic = "{topic}"', f'topic = "{other}"', f"topic was '{topic}' and is '{other}'"),
        ('format = "text"', 'schema = "a int"', "value_format was 'text' and is 'json'"),
        (
            "[sources.numbers]",
            "[sources.more]",
            "the sources of the checkpoint are numbers, those of the pipeline more",
        ),
        (f'topic = "{topic}-out"', f'topic = "{other}"', "sink 'topic' has changed"),
    ):
        edit(file, old, new)
        if "[sources.more]" in new:
            edit(file, "FROM numbers", "FROM more")
        assert message in refusal(broker, file)
        file.write_text(original)
    edit(file, 'checkpoint = "checkpoint"', 'checkpoint = "second"')
    assert "belongs to another checkpoint" in refusal(broker, file)
    edit(file, 'checkpoint = "second"', 'checkpoint = "files"')
    assert "holds other files" in refusal(broker, file)
    file.write_text(original)
    delete_topic(broker, f"{topic}-out")
    assert f"unknown topic '{topic}-out'" in refusal(broker, file)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_records", "max_record", "sources.numbers: .*unknown field `max_record`; its keys are topic"),
        ('name = "numbers"', "", "the pipeline: .*missing required field `name`"),
        ('name = "numbers"', 'name = ""', "name and checkpoint must not be empty"),
        ('checkpoint = "checkpoint"', 'checkpoint = ""', "name and checkpoint must not be empty"),
        ('topic = "TOPIC"', 'topic = ""', "sources.numbers: topic must not be empty"),
        ('step = "doubled"', 'step = "tripled"', "sinks.topic: unknown step 'tripled': there are doubled, numbers"),
        ("[steps.doubled]", "[steps.numbers]", "name 'numbers' is used twice"),
        ("[sinks.topic]", '[sinks."../x"]', "name '../x': use letters, digits and underscores"),
        ("[sources.numbers]", "[sources.2024]", "name '2024': use letters, digits and underscores, and no digit at"),
        ('name = "numbers"', 'name = "../../x"', "name '../../x': use letters, digits, spaces"),
        ("[sinks.topic]", "[sinks.topic]\ntable = 'x'", "exactly one of topic, table and lake"),
        ("[sinks.topic]", "[sinks.topic", "is not TOML"),
        ('topic = "TOPIC-out"', 'table = "x"\nstream_id = "s"', "stream_id is for topics with delivery exactly-once"),
        ('checkpoint = "checkpoint"', 'checkpoint = "c"\ntrigger = "soon"', "trigger 'soon'"),
        ('format = "text"', 'format = "json"', "format json needs a schema"),
        ('sql = "', 'function = "a:b"\ninputs = ["none"]\nsql = "', "a step has either sql or function"),
        ('"TOPIC-out"', '"TOPIC"', "is read and written"),
    ],
)
def test_a_file_that_cannot_work_is_refused_without_a_broker(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(PIPELINE)
    edit(path, old, new)
    with pytest.raises(ClientError, match=message) as raised:
        pipeline("run", str(path), "--check")
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("CAST(value AS LONG)", "CAST(amount AS LONG)", "steps.doubled: .*`amount`"),
        ("-out", "-misspelt", "unknown topic '.*-misspelt'"),
        ("AS value FROM", "AS value, partition AS p FROM", "sinks.topic: the result has the columns value and p"),
    ],
)
def test_a_check_finds_what_no_query_can_do(broker: Broker, file: Path, old: str, new: str, message: str) -> None:
    assert run_file(broker, file, "--check").endswith("declares pipeline numbers: numbers to topic\n")
    edit(file, old, new)
    with pytest.raises(ClientError, match=message):
        run_file(broker, file, "--check")
    assert list(file.parent.iterdir()) == [file]


def test_a_check_prints_what_is_wrong_in_one_line(broker: Broker, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, because PySpark's loggers write to the standard error of their process."""
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)  # Java prints a note about it.
    edit(file, "CAST(value AS LONG)", "CAST(amount AS LONG)")
    command = [sys.executable, "-m", "conveyor.cli.main", "pipeline", "run", str(file), "--check"]
    place = ["--master", "local[1]", "--bootstrap", broker.bootstrap_servers]
    ended = subprocess.run([*command, *place], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1), ended.stderr
    assert ended.stderr.startswith("conveyor: steps.doubled: ")


@pytest.mark.usefixtures("spark")
def test_a_check_looks_at_the_checkpoint(broker: Broker, topic: str, file: Path) -> None:
    run_file(broker, file)
    edit(file, 'name = "numbers"', 'name = "others"')
    with pytest.raises(ClientError, match="the checkpoint belongs to pipeline 'numbers', not 'others'"):
        run_file(broker, file, "--check")


def test_a_pipeline_is_stopped_killed_and_started_again(broker: Broker, topic: str, file: Path) -> None:
    edit(file, 'name = "numbers"', 'name = "numbers"\ntrigger = "continuous"')
    command = [sys.executable, "-m", "conveyor.cli.main", "pipeline", "run", str(file), "--master", "local[2]"]
    produce(broker, topic, numbered(range(50)))

    def started() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*command, "--bootstrap", broker.bootstrap_servers],
            start_new_session=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    with pytest.raises(ClientError, match="is not the checkpoint of a pipeline that has run"):
        pipeline("stop", str(file))
    first = started()
    wait_until(lambda: len(values(broker, f"{topic}-out")) == 50)
    assert f"numbers running (process {first.pid})" in pipeline("status", str(file))
    assert "runs already" in refusal(broker, file)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert "numbers killed" in pipeline("status", str(file))
    produce(broker, topic, numbered(range(50, 80)))
    second = started()
    wait_until(lambda: len(values(broker, f"{topic}-out")) == 80)
    assert pipeline("stop", str(file)) == "numbers stopped\n"
    assert second.communicate(timeout=PATIENCE_S)[0].startswith("numbers stopped: ")
    assert second.returncode == 0
    assert sorted(map(int, values(broker, f"{topic}-out"))) == [2 * number for number in range(80)]
