"""A lake whose checkpoint, log or cluster does not fit is refused, with nothing written, rather than doubled."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.testing import Broker
from pyspark_conveyor.lake.lake import open_lake
from tests.pipeline.lakes import archive, expected, places
from tests.pipeline.topics import create_topic, delete_topic, numbered, produce

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(scope="module")
def archived(broker: Broker, tmp_path_factory: pytest.TempPathFactory, spark: object) -> Path:
    """A lake of ten records, to make copies of."""
    create_topic(broker, "refused")
    produce(broker, "refused", numbered(range(10)))
    lake = tmp_path_factory.mktemp("archived") / "lake"
    archive(broker, lake, "refused")
    return lake


def lose_checkpoint(lake: Path) -> None:
    shutil.rmtree(lake / "_conveyor" / "checkpoint")


def take_another_checkpoint(lake: Path) -> None:
    (lake / "_conveyor" / "checkpoint" / "lake-id").write_text("another")


def lose_sink_log(lake: Path) -> None:
    shutil.rmtree(lake / "_spark_metadata")


def empty_the_checkpoint(lake: Path) -> None:
    for name in ("offsets", "commits"):
        shutil.rmtree(lake / "_conveyor" / "checkpoint" / name)


def take_an_older_log(lake: Path) -> None:
    for name in ("offsets", "commits"):
        directory = lake / "_conveyor" / "checkpoint" / name
        shutil.copy(directory / "0", directory / "1")


def take_an_older_checkpoint(lake: Path) -> None:
    (lake / "_spark_metadata" / "0.compact").rename(lake / "_spark_metadata" / "1.compact")


def tear_the_log(lake: Path) -> None:
    os.truncate(lake / "_spark_metadata" / "0.compact", 30)


def tear_the_manifest(lake: Path) -> None:
    os.truncate(lake / "_conveyor" / "lake.json", 10)


def lose_manifest(lake: Path) -> None:
    (lake / "_conveyor" / "lake.json").unlink()


def take_another_cluster(lake: Path) -> None:
    manifest = lake / "_conveyor" / "lake.json"
    lines = manifest.read_text().splitlines()
    manifest.write_text("\n".join('  "cluster_id": "other",' if "cluster_id" in line else line for line in lines))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_checkpoint, "the checkpoint of .* is missing"),
        (take_another_checkpoint, "the checkpoint in .* belongs to another lake"),
        (lose_sink_log, "_spark_metadata, the list of committed files, is missing"),
        (empty_the_checkpoint, "ends with batch 0, and its checkpoint with batch -1: .*/checkpoint is an older copy"),
        (
            take_an_older_checkpoint,
            "ends with batch 1, and its checkpoint with batch 0: .*/checkpoint is an older copy",
        ),
        (take_an_older_log, "ends with batch 0, and its checkpoint with batch 1: .*/lake is an older copy"),
        (tear_the_log, "0.compact is damaged"),
        (tear_the_manifest, "cannot be read as a lake"),
        (lose_manifest, "holds other files"),
        (take_another_cluster, "archives cluster other, this one is"),
    ],
)
def test_a_lake_that_does_not_fit_is_refused(
    broker: Broker, archived: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(archived, kept)
    try:
        damage(archived)
        with pytest.raises(ClientError, match=message) as raised:
            archive(broker, archived, "refused")
        assert "\n" not in str(raised.value)
        assert places(archived) == expected("refused", 10)
    finally:
        shutil.rmtree(archived)
        shutil.copytree(kept, archived)


def test_a_lake_that_was_moved_is_refused(broker: Broker, archived: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(archived, moved)
    with pytest.raises(ClientError, match=r"was made as .*: move it back"):
        archive(broker, moved, "refused")


def test_a_directory_with_other_files_is_refused(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "homeless")
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(ClientError, match=r"holds other files \(letter\.txt\)"):
        archive(broker, tmp_path, "homeless")
    assert [each.name for each in tmp_path.iterdir()] == ["letter.txt"]


def test_a_lake_that_is_being_written_is_refused(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "busy")
    with open_lake(tmp_path, "some-cluster", ["busy"]), pytest.raises(ClientError, match="another job writes to"):
        archive(broker, tmp_path, "busy")


def test_a_topic_that_was_made_anew_is_refused(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "anew")
    produce(broker, "anew", numbered(range(10)))
    archive(broker, tmp_path, "anew")
    delete_topic(broker, "anew")
    create_topic(broker, "anew")
    with pytest.raises(ClientError, match="was recreated, and records of the old one may be lost") as raised:
        archive(broker, tmp_path, "anew")
    assert "\n" not in str(raised.value)
    assert places(tmp_path) == expected("anew", 10)
