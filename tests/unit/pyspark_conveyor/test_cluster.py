"""Sessions on a cluster, as far as they need no Spark: masters, settings, the archive, and what failures mean."""

import socket
import zipfile

import pytest

from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.cluster import _explained, cluster_settings, is_cluster

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]"])
def test_local_masters_are_no_clusters(master: str) -> None:
    assert not is_cluster(master)


@pytest.mark.parametrize("master", ["spark://host:7077", "local-cluster[2,1,1024]", "yarn", "k8s://https://host:443"])
def test_other_masters_are_clusters(master: str) -> None:
    assert is_cluster(master)


def test_executors_get_the_packages_and_keep_what_else_is_set() -> None:
    given = {"spark.archives": "/models.zip#models", "spark.executorEnv.PYTHONPATH": "models"}
    settings = cluster_settings("local-cluster[2,1,1024]", given)
    first, _, ours = settings["spark.archives"].partition(",")
    assert first == "/models.zip#models"
    assert settings["spark.executorEnv.PYTHONPATH"] == "models:conveyor_packages"
    path, _, folder = ours.partition("#")
    assert folder == "conveyor_packages"
    names = set(zipfile.ZipFile(path).namelist())
    assert {"pyspark_conveyor/spark/spark_source.py", "pyspark_conveyor/__init__.py", "kafka/__init__.py"} <= names
    assert any(name.startswith("confluent_kafka/cimpl.") for name in names)
    assert not any("__pycache__" in name or ".." in name for name in names)


def test_the_driver_is_reached_at_the_address_that_leads_to_the_master() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        settings = cluster_settings(f"spark://127.0.0.1:{master.getsockname()[1]}", {})
    assert settings["spark.driver.host"] == "127.0.0.1"


def test_any_master_of_several_may_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"spark://127.0.0.1:{unused.getsockname()[1]},127.0.0.1:{master.getsockname()[1]}"
        assert cluster_settings(address, {})["spark.driver.host"] == "127.0.0.1"


def test_a_master_that_does_not_answer_is_an_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(PipelineError, match=f"no Spark master answers at {master}"):
            cluster_settings(master, {})


def test_an_unknown_version_of_python_is_explained() -> None:
    report = (
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different"
        " version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.\nPlease check"
    )
    assert _explained(report).startswith("the executors run Python 3.12 and this driver 3.11: set PYSPARK_PYTHON")


def test_a_python_that_is_not_there_is_explained() -> None:
    report = 'java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory\n\tat java.base'
    assert _explained(report).startswith("the executors have no /opt/python: set PYSPARK_PYTHON")


def test_any_other_failure_shows_its_exception() -> None:
    report = "Job aborted due to stage failure\nCaused by: java.io.EOFException: worker left\n\tat org.apache"
    assert _explained(report) == "the first task on an executor failed: java.io.EOFException: worker left"
