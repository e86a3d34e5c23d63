"""The options of `format("conveyor")`, with the names of Spark's own Kafka source where it has the same option.

bootstrap.servers      host:port[,host:port]      this or dataDir
dataDir                path                       batch only; reads the files of a broker instead (see `segments`)
topic                  name[,name]                this or topicPattern; `subscribe` is the same
topicPattern           regular expression         all topics whose whole name matches, internal ones left out;
                                                  `subscribePattern` is the same
startingOffsets        earliest | latest | JSON   {"topic": {"0": 17, "1": -2}}; -2 or left out earliest, -1 latest
startingTimestamp      ms since the epoch         the first record at or after it; takes precedence over startingOffsets
endingOffsets          latest | JSON              batch only; default latest
endingTimestamp        ms since the epoch         batch only; records before it
maxOffsetsPerTrigger   number                     stream only; records of one micro-batch, all partitions together
minPartitions          number                     ranges are divided further, into about as many Spark partitions
maxRecordsPerPartition number                     a longer range becomes several Spark partitions (default 1000000)
isolationLevel         read_committed (default) | read_uncommitted
group                  name                       stream only; a consumer group to which the progress is committed
failOnDataLoss         true | false               whether missing records fail the query (default true)
includeHeaders         true | false               default true
headersAs              array (default) | map      a map has the last value of each name
filterPushdown         true | false (default)     batch only; conditions on partition, offset, time narrow the fetch;
                                                  for tables that are used once only (see docs/pipeline.md)
kafka.*                                           security and client.id (see `raw_client`)

Any other option is refused, so that a misspelt option cannot read something unintended.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.brokers.option_values import (
    choice_option,
    client_options,
    count_option,
    flag_option,
    number_option,
    required_option,
)
from pyspark_conveyor.brokers.raw_client import translated
from pyspark_conveyor.pipeline_errors import PipelineError

EARLIEST, LATEST = -2, -1
RANGE_RECORDS = 1_000_000
_NAMED = {"earliest": EARLIEST, "latest": LATEST}

_BOTH = (
    "bootstrap.servers topic subscribe topicPattern subscribePattern startingOffsets startingTimestamp minPartitions"
    " maxRecordsPerPartition failOnDataLoss isolationLevel includeHeaders headersAs"
).split()
_BATCH_ONLY = ["dataDir", "endingOffsets", "endingTimestamp", "filterPushdown"]
_NOT_FOR_FILES = "bootstrap.servers startingTimestamp endingTimestamp filterPushdown".split()
_STREAM_ONLY = ["maxOffsetsPerTrigger", "group"]

Bounds = dict[str, dict[int, int]]
"""Offsets by topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """See the module's docstring. Offsets are one number for all partitions, or one per partition."""

    bootstrap_servers: str = ""
    data_dir: str | None = None
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    starting_offsets: int | Bounds = EARLIEST
    ending_offsets: int | Bounds = LATEST
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    max_offsets_per_trigger: int | None = None
    max_records_per_partition: int = RANGE_RECORDS
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    read_committed: bool = True
    include_headers: bool = True
    headers_as_map: bool = False
    group: str | None = None
    filter_pushdown: bool = False
    client: Mapping[str, str] = field(default_factory=dict)


def whole_topics(brokers: Brokers, topics: Sequence[str]) -> SourceOptions:
    """Return the options that read topics from their starts to their ends."""
    return SourceOptions(
        bootstrap_servers=brokers.bootstrap_servers, topics=tuple(dict.fromkeys(topics)), client=brokers.client
    )


def parse_options(raw_options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse and check the options. Raises PipelineError, which names the wrong or missing option."""
    options = {name.lower(): value for name, value in raw_options.items()}
    _refuse_others(options, streaming=streaming)
    start_default = "latest" if streaming else "earliest"
    pattern = _pattern(options)
    data_dir = _data_dir(options)
    return SourceOptions(
        bootstrap_servers="" if data_dir else required_option(options, "bootstrap.servers", "kafka.bootstrap.servers"),
        data_dir=data_dir,
        topics=() if pattern else _topics(required_option(options, "topic", "subscribe")),
        topic_pattern=pattern,
        starting_offsets=_offsets(options.get("startingoffsets", start_default), "startingOffsets", EARLIEST),
        ending_offsets=_offsets(options.get("endingoffsets", "latest"), "endingOffsets", LATEST),
        starting_timestamp_ms=number_option(options, "startingTimestamp"),
        ending_timestamp_ms=number_option(options, "endingTimestamp"),
        max_offsets_per_trigger=count_option(options, "maxOffsetsPerTrigger"),
        max_records_per_partition=count_option(options, "maxRecordsPerPartition") or RANGE_RECORDS,
        min_partitions=count_option(options, "minPartitions"),
        fail_on_data_loss=flag_option(options, "failOnDataLoss"),
        read_committed=choice_option(options, "isolationLevel", ("read_committed", "read_uncommitted"))
        == "read_committed",
        include_headers=flag_option(options, "includeHeaders"),
        headers_as_map=choice_option(options, "headersAs", ("array", "map")) == "map",
        group=options.get("group"),
        filter_pushdown="filterpushdown" in options and flag_option(options, "filterPushdown"),
        client=_checked_client_options(options),
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


def _data_dir(options: Mapping[str, str]) -> str | None:
    data_dir = options.get("datadir")
    if data_dir is not None:
        for name in _NOT_FOR_FILES:
            if name.lower() in options:
                raise PipelineError(f"options 'dataDir' and '{name}' do not go together: files have no broker to ask")
    return data_dir


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise PipelineError(f"option 'topic' is {text!r}: it takes names, with commas between them")
    return names


def _checked_client_options(options: Mapping[str, str]) -> dict[str, str]:
    client = client_options(options)
    translated(client)
    return client


def _pattern(options: Mapping[str, str]) -> str | None:
    pattern = options.get("topicpattern") or options.get("subscribepattern")
    if pattern is None:
        return None
    if options.get("topic") or options.get("subscribe"):
        raise PipelineError("options 'topic' and 'topicPattern' are both set: set one of them")
    try:
        re.compile(pattern)
    except re.error as error:
        raise PipelineError(f"option 'topicPattern' is {pattern!r}, which is no regular expression: {error}") from error
    return pattern


def _offsets(text: str, name: str, least: int) -> int | Bounds:
    """Return the offsets of an option. least: the smallest allowed; nothing ends at EARLIEST."""
    try:
        named = _NAMED.get(text.lower())
        if named is not None:
            return _offset(named, least)
        document = json.loads(text)
        return {
            topic: {int(number): _offset(value, least) for number, value in numbers.items()}
            for topic, numbers in document.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        allowed = ", ".join(word for word, offset in _NAMED.items() if offset >= least)
        raise PipelineError(
            f'option \'{name}\' is {text!r}: it takes {allowed}, or JSON such as {{"topic": {{"0": 17}}}}'
        ) from error


def _offset(value: object, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(value)
    return value
