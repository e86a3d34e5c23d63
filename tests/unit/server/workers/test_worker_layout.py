"""The settings and directories of each worker."""

import shutil
from pathlib import Path

import pytest

from conveyor.kernel.errors import SettingsError, StartupError
from conveyor.server.workers.worker_layout import (
    check_all_are_started,
    check_workers,
    flat_settings,
    socket_path,
    worker_directory,
    worker_settings,
)
from conveyor.server.workers.worker_reports import decode_settings, encode_settings
from conveyor.settings.tree import Settings, from_sources


def settings(**more: object) -> Settings:
    return from_sources({name.replace("__", "."): value for name, value in more.items()} | {"broker.workers": 3})


def test_workers_have_consecutive_ports_and_directories_of_their_own() -> None:
    second = worker_settings(settings(network__advertised="example.org:19092"), 2, "the store")
    assert (second.broker.node_id, second.broker.workers, second.broker.metadata) == (2, 1, "the store")
    assert second.broker.data_dir == "conveyor-data/worker-2"
    network = second.network
    assert (network.kafka, network.http, network.peer) == ("127.0.0.1:9093", "127.0.0.1:8081", "127.0.0.1:0")
    assert network.advertised == "example.org:19093"


def test_free_ports_stay_free_ports() -> None:
    free = settings(network__kafka="127.0.0.1:0", network__http="127.0.0.1:0")
    check_workers(free)
    network = worker_settings(free, 3, "").network
    assert (network.kafka, network.http, network.advertised) == ("127.0.0.1:0", "127.0.0.1:0", "")


@pytest.mark.parametrize(("wanted", "replicas"), [(3, 3), (5, 3), (1, 1)])
def test_committed_offsets_have_no_more_replicas_than_there_are_workers(wanted: int, replicas: int) -> None:
    one = worker_settings(settings(groups__offsets_replication_factor=wanted), 1, "")
    assert one.groups.offsets_replication_factor == replicas


def test_a_worker_gets_all_settings_of_its_supervisor() -> None:
    one = worker_settings(settings(topics__segment_bytes=2048, broker__rack="r", network__insecure=True), 1, "store")
    assert from_sources(decode_settings(encode_settings(flat_settings(one)))) == one


@pytest.mark.parametrize(
    ("kafka", "http", "message"),
    [
        (
            "127.0.0.1:9092",
            "127.0.0.1:9094",
            "port 9094 would be --kafka of worker 3 and --http of worker 1: ",
        ),
        (
            "127.0.0.1:65534",
            "127.0.0.1:0",
            "setting 'network.kafka' is '127.0.0.1:65534': there is no port 65536 ",
        ),
        ("127.0.0.1:0", "nowhere", r"setting 'network.http' is 'nowhere': it takes host:port"),
    ],
)
def test_ports_that_workers_cannot_have_are_refused(kafka: str, http: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_workers(settings(network__kafka=kafka, network__http=http))


def test_a_worker_with_partitions_is_not_left_out(tmp_path: Path) -> None:
    logs = worker_directory(tmp_path, 4) / "logs"
    logs.mkdir(parents=True)
    (worker_directory(tmp_path, 5) / "logs").mkdir(parents=True)
    (tmp_path / "worker-of-another").mkdir()
    check_all_are_started(tmp_path, 3)
    (logs / "orders-0").mkdir()
    check_all_are_started(tmp_path, 4)
    with pytest.raises(StartupError, match=r"start with --workers 4, and move them with `conveyor cluster drain 4`"):
        check_all_are_started(tmp_path, 3)


def test_the_socket_is_in_the_data_directory_unless_its_path_is_too_long(tmp_path: Path) -> None:
    assert socket_path(Path("/data")) == Path("/data/metadata.sock")
    elsewhere = socket_path(tmp_path / ("long" * 30))
    assert len(str(elsewhere)) < 100
    assert elsewhere.parent.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(elsewhere.parent)
