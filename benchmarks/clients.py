"""What every confluent-kafka client here is made with, whatever it is for."""

from typing import Any

_WARNING = 4


def client(bootstrap_servers: str, **settings: Any) -> dict[str, Any]:
    """A client's configuration; `linger_ms=5` stands for `linger.ms`.

    Telemetry is off, so that each system gets the same requests; only warnings of librdkafka are logged.
    """
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": bootstrap_servers, "enable.metrics.push": False, "log_level": _WARNING, **named}


def producer(bootstrap_servers: str, **settings: Any) -> dict[str, Any]:
    """The configuration of a producer that waits for every in-sync replica and compresses nothing."""
    return client(bootstrap_servers, acks="all", compression_type="none", **settings)


def consumer(bootstrap_servers: str, **settings: Any) -> dict[str, Any]:
    """The configuration of a consumer that is told its partitions and commits nothing."""
    return client(bootstrap_servers, group_id="bench", enable_auto_commit=False, **settings)
