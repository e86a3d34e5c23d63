"""Connections that a process keeps from one micro-batch to the next.

Spark's Python processes live as long as a query, or longer. To connect takes several times as long as to ask a broker
for the records of a small batch, above all with TLS.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.pipeline_errors import PipelineError

_MOST = 4
_kept: dict[tuple[str, frozenset[tuple[str, str]]], RawClient] = {}
"""The unused ones, by servers and options; the one that was used last is last."""


@contextmanager
def kept_client(bootstrap_servers: str, client_options: Mapping[str, str]) -> Iterator[RawClient]:
    """Lend the client that an earlier call has kept if its brokers still answer, or else a new one.

    An error inside closes it. Raises PipelineError for invalid `kafka.*` options.
    """
    key = (bootstrap_servers, frozenset(client_options.items()))
    client = _answering(_kept.pop(key, None)) or RawClient(bootstrap_servers, client_options)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    surplus = _kept.pop(key, None)  # Two were lent at a time.
    if surplus is not None:
        surplus.close()
    _kept[key] = client
    while len(_kept) > _MOST:
        _kept.pop(next(iter(_kept))).close()


def _answering(client: RawClient | None) -> RawClient | None:
    if client is None:
        return None
    try:
        client.metadata(())
    except PipelineError:  # A new one fails by itself, if the brokers refuse it, too.
        client.close()
        return None
    return client
