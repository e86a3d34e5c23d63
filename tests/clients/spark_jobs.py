"""The jobs with Spark's own connector, for test_spark_kafka_connector.py: in the session of `spark_connector`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conveyor.kernel.errors import ConveyorError
from tests.pipeline.pipelines import PIPELINE_MASTER, committed, pipeline
from tests.pipeline.topics import BASE_TIME_MS, Sent, create_topic, produce

PARTITIONS = 2
COUNT = 50
TOPICS = ("jobs", "jobs-even", "jobs-exact", "jobs-bad", "jobs-dead", "jobs-again")
PIPELINE = """
name = "jobs"
checkpoint = "checkpoint"
connector = "kafka"
delivery = "at-least-once"
dead_letters = "jobs-bad"

[sources.jobs]
topic = "jobs"
schema = "id long"

[steps.even]
sql = "SELECT key, headers, payload.id FROM jobs WHERE payload.id % 2 = 0"

[steps.records]
sql = "SELECT topic, partition, offset, timestamp, timestampType, key, value, headers FROM jobs"

[sinks.even]
step = "even"
topic = "jobs-even"

[sinks.exact]
step = "records"
topic = "jobs-exact"
delivery = "exactly-once"
connector = "conveyor"

[sinks.lake]
step = "records"
lake = "lake"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Runs jobs by their commands. Each step yields what is to be compared."""

    bootstrap_servers: str
    http: str
    jars: Path
    directory: Path

    def fill(self) -> None:
        for topic in TOPICS:
            create_topic(self, topic, PARTITIONS)
        produce(self, "jobs", map(job_record, range(COUNT)))
        produce(self, "jobs", [Sent(value=b"no JSON")])
        texts = {"reason": b"no stock", "topic": b"jobs", "subscription": b"billing", "deliveries": b"1"}
        texts |= {"partition": b"0", "offset": b"7", "first-failure-ms": b"1", "last-failure-ms": b"%d" % BASE_TIME_MS}
        headers = tuple((f"conveyor-dead-{name}", text) for name, text in texts.items())
        produce(self, "jobs-dead", [Sent(headers=headers), Sent(value=b"no dead letter")])

    def steps(self) -> Iterator[dict[str, Any]]:
        (self.directory / "jobs.toml").write_text(PIPELINE)
        self._with_kafka("run", str(self.directory / "jobs.toml"), *self._broker)
        # As after a kill: the sink has committed the micro-batch, and the checkpoint has not.
        (self.directory / "checkpoint/queries/exact/commits/0").unlink()
        produce(self, "jobs", map(job_record, range(COUNT, COUNT + 2)))
        self._with_kafka("run", str(self.directory / "jobs.toml"), *self._broker)
        refusal = refused(lambda: self._with_conveyor("run", str(self.directory / "jobs.toml"), *self._broker))
        yield {"step": "run", "counts": [len(self.records(topic)) for topic in TOPICS[1:4]], "refusal": refusal}
        yield {"step": "even", "same": self.contents("jobs-even") == even_ones(range(0, COUNT + 2, 2))}
        yield {"step": "exact", "same": self.contents("jobs-exact") == sent_ones(range(COUNT + 2))}
        yield self._mirror()
        yield self._replay()
        for command, more in {"metrics": ("--topic", "jobs"), "deadletters": ("--topic", "jobs-dead")}.items():
            places = {kind: (*self._broker, "--http", self.http, *more, *self._out(command, kind)) for kind in "ab"}
            printed = self._with_kafka(command, *places["a"]), self._with_conveyor(command, *places["b"])
            yield {"step": command, "same": printed[0] == printed[1], "shown": printed[0]}

    def records(self, topic: str) -> list[Any]:
        return committed(self, topic, PARTITIONS)

    def contents(self, topic: str) -> list[tuple[str, str, str]]:
        return sorted(shown(each.key(), each.value(), each.headers()) for each in self.records(topic))

    def _mirror(self) -> dict[str, Any]:
        same_cluster = ("--from", self.bootstrap_servers, "--to", self.bootstrap_servers, "--prefix", "copy.")
        place = ("--topic", "jobs", "--checkpoint", str(self.directory / "mirror"), "--until-end")
        printed = self._with_kafka("mirror", *same_cluster, *place)
        refusal = refused(lambda: self._with_conveyor("mirror", *same_cluster, *place))
        copied, original = (
            [(each.partition(), each.timestamp()[1], each.key(), each.value()) for each in self.records(topic)]
            for topic in ("copy.jobs", "jobs")
        )
        return {"step": "mirror", "shown": printed, "same": sorted(copied) == sorted(original), "refusal": refusal}

    def _replay(self) -> dict[str, Any]:
        to_again = ("--from", str(self.directory / "lake"), "--to", "jobs-again", "--same-partitions", *self._broker)
        refusal = refused(lambda: self._with_kafka("replay", *to_again))
        printed = self._with_kafka("replay", *to_again, "--at-least-once", "--job-id", "again")
        repeated = self._with_kafka("replay", *to_again, "--at-least-once", "--job-id", "again")
        other = refused(lambda: self._with_conveyor("replay", *to_again, "--job-id", "again"))
        same = self.contents("jobs-again") == self.contents("jobs-exact")
        return {"step": "replay", "shown": [printed, repeated], "same": same, "refusals": [refusal, other]}

    @property
    def _broker(self) -> tuple[str, ...]:
        return ("--bootstrap", self.bootstrap_servers)

    def _out(self, command: str, kind: str) -> tuple[str, ...]:
        return ("--to", str(self.directory / f"metrics-{kind}")) if command == "metrics" else ("--sample", "1")

    def _with_kafka(self, command: str, *arguments: str) -> str:
        chosen = ("--connector", "kafka", "--connector-jars", str(self.jars))
        return pipeline(command, *arguments, *PIPELINE_MASTER, *chosen)

    def _with_conveyor(self, command: str, *arguments: str) -> str:
        return pipeline(command, *arguments, *PIPELINE_MASTER, "--connector", "conveyor")


def job_record(number: int) -> Sent:
    key = None if number % 5 == 0 else b"" if number % 5 == 1 else b"key-%d" % number
    headers = (("a", b"%d" % number), ("b", None), ("a", b""))[: number % 4]
    value, partition = b'{"id": %d}' % number, number % PARTITIONS
    return Sent(value=value, key=key, partition=partition, headers=headers, timestamp_ms=BASE_TIME_MS + number)


def refused(run: Callable[[], object]) -> str:
    try:
        run()
    except ConveyorError as error:
        return str(error)
    return ""


def shown(key: bytes | None, value: bytes | None, headers: Any) -> tuple[str, str, str]:
    """A record without its time, in a form that can be sorted."""
    return repr(key), repr(value), repr([tuple(header) for header in headers or ()])


def sent_ones(numbers: Iterable[int]) -> list[tuple[str, str, str]]:
    return sorted(shown(each.key, each.value, each.headers) for each in map(job_record, numbers))


def even_ones(numbers: Iterable[int]) -> list[tuple[str, str, str]]:
    """The records of step `even`, whose values Spark makes."""
    pairs = [(number, job_record(number)) for number in numbers]
    return sorted(shown(sent.key, b'{"id":%d}' % number, sent.headers) for number, sent in pairs)
