"""The options of a stream of a subscription.

subscription           name                    required
http                   http://host:port        required; where the REST API is
bootstrap.servers      host:port[,host:port]   required; the records are fetched there
maxMessagesPerTrigger  number                  messages of one micro-batch (default 5000)
visibility             duration                how long a lease lasts unless it is extended (default 5m): 30s, 10m, 2h
token                  text                    for brokers that require one
includeHeaders, headersAs, kafka.*             as for topics

Any other option is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_conveyor.brokers.option_values import (
    choice_option,
    client_options,
    count_option,
    flag_option,
    required_option,
)
from pyspark_conveyor.brokers.raw_client import translated
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.source_options import SourceOptions

_NAMES = ("subscription http bootstrap.servers maxMessagesPerTrigger visibility token includeHeaders headersAs").split()
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions:
    """See the module's docstring. source: how the records are fetched."""

    address: str
    subscription: str
    max_messages: int
    visibility: str
    visibility_s: float
    token: str | None
    source: SourceOptions


def parse_subscription_options(raw_options: Mapping[str, str]) -> SubscriptionOptions:
    """Parse and check the options. Raises PipelineError, which names the wrong or missing option."""
    options = {name.lower(): value for name, value in raw_options.items()}
    known = {name.lower() for name in _NAMES}
    for name in options:
        if name not in known and not name.startswith("kafka."):
            raise PipelineError(
                f"unknown option '{name}' with a subscription: there are {', '.join(_NAMES)}, and kafka.*"
            )
    address = required_option(options, "http")
    if not re.match(r"https?://", address):
        raise PipelineError(f"option 'http' is {address!r}: it takes an address such as http://127.0.0.1:8080")
    visibility = options.get("visibility", "5m")
    duration = re.fullmatch(r"([1-9]\d*)([smh])", visibility)
    if duration is None:
        raise PipelineError(f"option 'visibility' is {visibility!r}: it takes a duration such as 30s, 10m or 2h")
    client = client_options(options)
    translated(client)
    return SubscriptionOptions(
        address=address,
        subscription=required_option(options, "subscription"),
        max_messages=count_option(options, "maxMessagesPerTrigger") or 5_000,
        visibility=visibility,
        visibility_s=float(int(duration[1]) * _SECONDS[duration[2]]),
        token=options.get("token"),
        source=SourceOptions(
            bootstrap_servers=required_option(options, "bootstrap.servers", "kafka.bootstrap.servers"),
            include_headers=flag_option(options, "includeHeaders"),
            headers_as_map=choice_option(options, "headersAs", ("array", "map")) == "map",
            client=client,
        ),
    )
