"""Jobs at a cluster that lets in only those who log in: by the file of `--client-config`, with the rights they need."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from conveyor.cli.pipeline.job_run import job_brokers
from conveyor.cli.terminal.kafka_client import ClientError
from pyspark_conveyor.jobs.metrics_consumers import group_numbers
from tests.certificates import Certificates
from tests.clients.python.security import librdkafka
from tests.pipeline.pipelines import PIPELINE_MASTER, pipeline, values
from tests.pipeline.topics import create_topic, numbered, produce
from tests.secured_cluster import MUTUAL_TLS, TOKENS, SecuredCluster, connecting

pytestmark = pytest.mark.usefixtures("spark")
COUNT = 20
NUMBERS = sorted(map(str, range(COUNT)))

Job = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    """The test makes topics as the observer; jobs log in by tokens."""
    folder = tmp_path_factory.mktemp("secured")
    with SecuredCluster(Certificates(folder), folder) as running, connecting(running.observer):
        yield running


@pytest.fixture
def topic(cluster: SecuredCluster, topic: str) -> str:
    """A topic with numbers. The user of the jobs may read and write it and what begins with its name."""
    create_topic(cluster, topic, partitions=2)
    produce(cluster, topic, numbered(range(COUNT), partitions=2))
    cluster.allow(TOKENS, topic, {"topic": "read,write"}, prefixed=True)
    cluster.allow(TOKENS, "spark.", {"transactional_id": "write", "group": "read"}, prefixed=True)
    return topic


@pytest.fixture
def job(cluster: SecuredCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("CONVEYOR_CLIENT_CONFIG", str(cluster.client_config(TOKENS, tmp_path)))
    monkeypatch.setenv("CONVEYOR_BOOTSTRAP", cluster.bootstrap(TOKENS))
    return lambda *arguments: pipeline(*arguments, *PIPELINE_MASTER)


def test_a_lake_is_filled_and_replayed(job: Job, cluster: SecuredCluster, topic: str, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    assert job("archive", "--topic", topic, "--to", lake).startswith(f"archived {COUNT} records of {topic}")
    create_topic(cluster, f"{topic}-again")
    cluster.allow(TOKENS, f"conveyor.replay.{topic}", {"group": "read"})
    assert "replayed 20 records" in job("replay", "--from", lake, "--to", f"{topic}-again", "--job-id", topic)
    assert sorted(values(cluster, f"{topic}-again")) == NUMBERS


@pytest.mark.sweep
def test_a_topic_is_transformed(job: Job, cluster: SecuredCluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, f"{topic}-even")
    query = ("--sql", "SELECT value FROM numbers WHERE CAST(CAST(value AS STRING) AS INT) % 2 = 0")
    place = ("--until-end", "--checkpoint", str(tmp_path / "checkpoint"))
    job("transform", "--source", f"numbers={topic}", "--to", f"{topic}-even", "--format", "raw", *query, *place)
    assert sorted(values(cluster, f"{topic}-even")) == [number for number in NUMBERS if int(number) % 2 == 0]


@pytest.mark.sweep
def test_a_topic_and_a_group_are_mirrored_between_two_logins(
    job: Job, cluster: SecuredCluster, topic: str, tmp_path: Path
) -> None:
    """The source lets the job in by its certificate, the target by its token."""
    reader = Consumer(librdkafka(cluster.bootstrap_servers) | {"group.id": topic})
    reader.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    reader.close()
    cluster.allow(MUTUAL_TLS, topic, {"topic": "read,describe_configs", "group": "describe"})
    cluster.allow(TOKENS, f"copy.{topic}", {"topic": "create,read,write"})
    cluster.allow(TOKENS, topic, {"group": "read"})
    clusters = ("--from", cluster.bootstrap(MUTUAL_TLS), "--to", cluster.bootstrap(TOKENS))
    logins = ("--from-client-config", str(cluster.client_config(MUTUAL_TLS, tmp_path)))
    others = ("--prefix", "copy.", "--group", topic, "--checkpoint", str(tmp_path / "mirror"), "--until-end")
    done = job("mirror", *clusters, *logins, "--topic", topic, *others)
    assert done == f"mirrored {COUNT} records of {topic}\ntranslated 1 positions of group {topic}\n"
    assert sorted(values(cluster, f"copy.{topic}", partitions=2)) == NUMBERS


@pytest.mark.sweep
def test_dead_letters_and_lags_are_read(job: Job, cluster: SecuredCluster, topic: str) -> None:
    assert "dead letters" in job("deadletters", "--topic", topic)
    cluster.allow(TOKENS, topic, {"group": "read"})
    brokers = job_brokers(cluster.bootstrap(TOKENS))
    reader = Consumer(brokers.confluent | {"group.id": topic})
    reader.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    reader.close()
    [numbers] = group_numbers(brokers, [topic], datetime.now(UTC))
    assert (numbers.consumer, numbers.lag) == (topic, COUNT // 2 - 5)


def test_a_topic_without_a_right_is_refused(job: Job, cluster: SecuredCluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, f"not-{topic}")
    with pytest.raises(ClientError, match="TopicAuthorizationFailed"):
        job("archive", "--topic", f"not-{topic}", "--to", str(tmp_path / "lake"))
