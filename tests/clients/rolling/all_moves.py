"""The producers and readers of all clients at once, on brokers that are being restarted."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack

from tests.clients.all_clients import Client
from tests.clients.programs import Program
from tests.clients.rolling.kcat_program import KcatProgram
from tests.clients.rolling.leader_moves import LeaderMoves
from tests.clients.rolling.rest_moves import RestMoves
from tests.clients.rolling.rolling_cluster import RollingCluster
from tests.clients.toolchains import require

_RECORDS_PER_STEP = 50
_STEP_S = 0.5


def check_moves(
    cluster: RollingCluster, clients: Iterable[tuple[Client, str]], restarts_count: int, *, with_kcat: bool = False
) -> None:
    """Play `LeaderMoves` of these clients with these protocols, and `RestMoves`, until enough restarts.

    with_kcat: whose partitions may stray, see `StrayPartitions`, and kcat cannot tell.

    No record is lost, doubled or reordered, no position is reset, and no application sees an error that is final.
    """
    with ExitStack() as running:
        moves = {}
        for name, program, protocol in _programs(clients, with_kcat=with_kcat):
            moves[name] = LeaderMoves(program, cluster.bootstrap_servers, f"moves-{name}", protocol)
            running.callback(moves[name].kill)
        rest = RestMoves(cluster.brokers)
        running.callback(rest.end)
        with cluster:
            last = cluster.restarts_count + restarts_count
            while cluster.restarts_count < last:
                cluster.await_restart(_STEP_S)
                for moving in moves.values():
                    moving.send(_RECORDS_PER_STEP)
        failures = [_failure(name, moving.finish) for name, moving in moves.items()]
        failures.append(_failure("REST", rest.finish))
    assert not any(failures), "\n\n".join(filter(None, failures))


def _programs(clients: Iterable[tuple[Client, str]], *, with_kcat: bool) -> Iterable[tuple[str, Program, str]]:
    if with_kcat:
        require("kcat", "kcat")
        yield "kcat", KcatProgram(), "eager"
    for client, protocol in clients:
        yield f"{client.name}-{protocol}", client.program(), protocol


def _failure(name: str, work: Callable[[], object]) -> str | None:
    """Do some work. Returns how it has failed."""
    try:
        work()
    except AssertionError as failure:
        return f"{name}: {failure}"
    return None
