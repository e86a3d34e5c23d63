"""The options of `format("conveyor")`, with the names of Spark's own Kafka source where it has the same option.

bootstrap.servers      host:port[,host:port]      required
topic                  name[,name]                required; `subscribe` is the same
startingOffsets        earliest | latest | JSON   {"topic": {"0": 17, "1": -2}}; -2 or left out earliest, -1 latest
startingTimestamp      ms since the epoch         the first record at or after it; takes precedence over startingOffsets
endingOffsets          latest | JSON              batch only; default latest
endingTimestamp        ms since the epoch         batch only; records before it
maxOffsetsPerTrigger   number                     stream only; records of one micro-batch, all partitions together
maxRecordsPerPartition number                     a longer range becomes several Spark partitions (default 200000)
failOnDataLoss         true | false               whether missing records fail the query (default true)
includeHeaders         true | false               default true
kafka.*                                           passed to the client (librdkafka's names)

Any other option is refused, so that a misspelt option cannot read something unintended.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from conveyor.pipeline.pipeline_errors import PipelineError

EARLIEST, LATEST = -2, -1
RANGE_RECORDS = 200_000
_NAMED = {"earliest": EARLIEST, "latest": LATEST}

_BOTH = (
    "bootstrap.servers topic subscribe startingOffsets startingTimestamp maxRecordsPerPartition failOnDataLoss"
    " includeHeaders"
).split()
_BATCH_ONLY = ["endingOffsets", "endingTimestamp"]
_STREAM_ONLY = ["maxOffsetsPerTrigger"]

Bounds = dict[str, dict[int, int]]
"""Offsets by topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """See the module's docstring. Offsets are one number for all partitions, or one per partition."""

    bootstrap_servers: str
    topics: tuple[str, ...]
    starting_offsets: int | Bounds = EARLIEST
    ending_offsets: int | Bounds = LATEST
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    max_offsets_per_trigger: int | None = None
    max_records_per_partition: int = RANGE_RECORDS
    fail_on_data_loss: bool = True
    include_headers: bool = True
    client: Mapping[str, str] = field(default_factory=dict)


def parse_options(raw_options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse and check the options. Raises PipelineError, which names the wrong or missing option."""
    options = {name.lower(): value for name, value in raw_options.items()}
    _refuse_others(options, streaming=streaming)
    start_default = "latest" if streaming else "earliest"
    return SourceOptions(
        bootstrap_servers=_required(options, "bootstrap.servers", "kafka.bootstrap.servers"),
        topics=_topics(_required(options, "topic", "subscribe")),
        starting_offsets=_offsets(options.get("startingoffsets", start_default), "startingOffsets"),
        ending_offsets=_offsets(options.get("endingoffsets", "latest"), "endingOffsets"),
        starting_timestamp_ms=_number(options, "startingTimestamp"),
        ending_timestamp_ms=_number(options, "endingTimestamp"),
        max_offsets_per_trigger=_count(options, "maxOffsetsPerTrigger"),
        max_records_per_partition=_count(options, "maxRecordsPerPartition") or RANGE_RECORDS,
        fail_on_data_loss=_flag(options, "failOnDataLoss"),
        include_headers=_flag(options, "includeHeaders"),
        client={name[len("kafka.") :]: value for name, value in options.items() if name.startswith("kafka.")},
    )


def _refuse_others(options: Mapping[str, str], *, streaming: bool) -> None:
    """Raise PipelineError for an option that would have no effect."""
    allowed = [*_BOTH, *(_STREAM_ONLY if streaming else _BATCH_ONLY)]
    misplaced = {name.lower(): name for name in (_BATCH_ONLY if streaming else _STREAM_ONLY)}
    allowed_names = {name.lower() for name in allowed}
    for name in options:
        if name in misplaced:
            raise PipelineError(f"option '{misplaced[name]}' is for {'read' if streaming else 'readStream'} only")
        if name not in allowed_names and not name.startswith("kafka."):
            raise PipelineError(f"unknown option '{name}': there are {', '.join(allowed)}, and kafka.*")


def _required(options: Mapping[str, str], *names: str) -> str:
    for name in names:
        if options.get(name):
            return options[name]
    raise PipelineError(f"option '{names[0]}' is missing: set .option('{names[0]}', ...)")


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise PipelineError(f"option 'topic' is {text!r}: it takes names, with commas between them")
    return names


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal():
        raise PipelineError(f"option '{name}' is {text!r}: it takes a whole number")
    return int(text)


def _count(options: Mapping[str, str], name: str) -> int | None:
    count = _number(options, name)
    if count == 0:
        raise PipelineError(f"option '{name}' is 0: it takes a number from 1")
    return count


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "true").lower()
    if text not in ("true", "false"):
        raise PipelineError(f"option '{name}' is {text!r}: it takes true or false")
    return text == "true"


def _offsets(text: str, name: str) -> int | Bounds:
    if text.lower() in _NAMED:
        return _NAMED[text.lower()]
    try:
        document = json.loads(text)
        return {
            topic: {int(number): _offset(value) for number, value in numbers.items()}
            for topic, numbers in document.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise PipelineError(
            f'option \'{name}\' is {text!r}: it takes earliest, latest, or JSON such as {{"topic": {{"0": 17}}}}'
        ) from error


def _offset(value: object) -> int:
    if type(value) is not int or value < EARLIEST:
        raise ValueError(value)
    return value
