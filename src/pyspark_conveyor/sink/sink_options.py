"""The options of `format("conveyor")` as a target.

bootstrap.servers     host:port[,host:port]   required
topic                 name                    the target of all rows; without it, the column `topic` names it
delivery              at-least-once (default) | exactly-once
jobId                 name                    with exactly-once, for a batch write, which is then written only once
batchNumber           number                  with jobId: a job that writes several tables numbers them in order, from 0
streamId              name                    with exactly-once, for a stream: it writes from one checkpoint only
markerTopic           name                    with exactly-once and a column `topic`: one of the target topics
transactionTimeoutMs  number                  with exactly-once: longer than the longest batch (default 900000)
kafka.*                                       passed to the producer (librdkafka's names)

Any other option is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pyspark_conveyor.brokers.option_values import client_options, count_option, number_option, required_option
from pyspark_conveyor.brokers.raw_client import security_options, translated
from pyspark_conveyor.pipeline_errors import PipelineError

_NAMES = "bootstrap.servers topic delivery jobId batchNumber streamId markerTopic transactionTimeoutMs".split()
_TIMEOUT_MS = 900_000
_OURS = ("bootstrap.servers", "transactional.id", "enable.idempotence", "acks", "transaction.timeout.ms")


class DeliveryGuarantee(Enum):
    """Guarantees about the number of times that a row is written when tasks or batches are repeated."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    bootstrap_servers: str
    topic: str | None = None
    delivery: DeliveryGuarantee = DeliveryGuarantee.AT_LEAST_ONCE
    job_id: str | None = None
    batch_number: int = 0
    stream_id: str | None = None
    marker_topic: str | None = None
    transaction_timeout_ms: int = _TIMEOUT_MS
    client: Mapping[str, str] = field(default_factory=dict)

    @property
    def security(self) -> dict[str, str]:
        """The options of the client that other clients need as well."""
        return security_options(self.client)


def parse_sink_options(raw_options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse and check the options. Raises PipelineError, which names the wrong or missing option."""
    options = {name.lower(): value for name, value in raw_options.items()}
    known = {name.lower() for name in _NAMES} | {"path", "checkpointlocation", "queryname"}
    for name in options:
        if name not in known and not name.startswith("kafka."):
            raise PipelineError(f"unknown option '{name}': there are {', '.join(_NAMES)}, and kafka.*")
    parsed = SinkOptions(
        bootstrap_servers=required_option(options, "bootstrap.servers", "kafka.bootstrap.servers"),
        topic=options.get("topic"),
        delivery=_delivery(options.get("delivery", DeliveryGuarantee.AT_LEAST_ONCE.value)),
        job_id=options.get("jobid"),
        batch_number=number_option(options, "batchNumber") or 0,
        stream_id=options.get("streamid"),
        marker_topic=options.get("markertopic") or options.get("topic"),
        transaction_timeout_ms=count_option(options, "transactionTimeoutMs") or _TIMEOUT_MS,
        client=_checked(client_options(options)),
    )
    if parsed.batch_number and not parsed.job_id:
        raise PipelineError("option 'batchNumber' needs 'jobId': name the job whose batches are numbered")
    if parsed.delivery is DeliveryGuarantee.EXACTLY_ONCE:
        _check_exactly_once(parsed, streaming=streaming)
    elif parsed.job_id or parsed.stream_id is not None or "markertopic" in options:
        raise PipelineError("options 'jobId', 'streamId' and 'markerTopic' are for delivery=exactly-once")
    return parsed


def _check_exactly_once(options: SinkOptions, *, streaming: bool) -> None:
    if streaming and options.job_id:
        raise PipelineError("option 'jobId' is for batch writes: a stream is known by its checkpoint, and 'streamId'")
    if options.stream_id is not None and not (streaming and options.stream_id):
        raise PipelineError("option 'streamId' is the name of a stream: name a batch write with 'jobId'")
    if not streaming and not options.job_id:
        raise PipelineError(
            "option 'jobId' is missing: with delivery=exactly-once, name the job, so that a repetition is recognized"
        )
    if options.marker_topic is None:
        raise PipelineError("option 'markerTopic' is missing: name one of the topics that the rows go to")


def _delivery(text: str) -> DeliveryGuarantee:
    try:
        return DeliveryGuarantee(text.lower())
    except ValueError as error:
        choices = " or ".join(delivery.value for delivery in DeliveryGuarantee)
        raise PipelineError(f"option 'delivery' is {text!r}: it takes {choices}") from error


def _checked(client: dict[str, str]) -> dict[str, str]:
    for name in _OURS:
        if name in client:
            raise PipelineError(f"option 'kafka.{name}' cannot be set: the sink sets it itself")
    translated(security_options(client))
    return client
