"""Plays the stories of many seeds in several processes, unless there are few seeds.

The processes have different hash seeds. Two of them play every twentieth seed, which must then tell the same story; the
result does not depend on the number of processes. A sweep that is long enough must have met every kind of fault and
event: otherwise its schedules have lost depth.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from logging import CRITICAL, getLogger
from multiprocessing import get_context

from simulation.clients.transactions.cluster_transactions import TRANSACTION_EVENTS
from simulation.cluster.fault_counts import CLUSTER_EVENTS, TROUBLE_EVENTS
from simulation.cluster_schedule import FAULTS, make_schedule
from simulation.cluster_story import play

_SEEDS_OF_ONE_PROCESS = 50
_SEEDS_OF_A_LONG_SWEEP = 500
_CHUNK = 10
_PLAYED_TWICE_EACH = 20
MUST_HAPPEN = FAULTS | CLUSTER_EVENTS | TROUBLE_EVENTS | TRANSACTION_EVENTS
"""The events that a long sweep must have met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The outcome of one seed. failure: empty if every invariant held. cpu_s: the time that it took."""

    seed: int
    failure: str
    happened: dict[str, int]
    digest: str
    cpu_s: float


@dataclass(slots=True)
class SweepResult:
    """The outcomes of all seeds. failed: in the order of the seeds. missing: what should have happened, and has not."""

    failed: list[Played] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    missing: Sequence[str] = ()
    cpu_s: float = 0.0


def sweep(seeds: range, advanced: Callable[[int], None], processes: int = 2, brokers: int | None = None) -> SweepResult:
    """Play the seeds until one fails. advanced: called with the number of seeds played since the last call.

    processes: at least two play a sweep of more than a few seeds, because they compare what they play. brokers: by
    default what each seed draws.
    """
    result = SweepResult()
    digests: dict[int, str] = {}
    for outcomes in _chunks(seeds, processes, brokers):
        for played in outcomes:
            result.happened.update(played.happened)
            result.cpu_s += played.cpu_s
            if played.failure:
                result.failed.append(played)
            elif digests.setdefault(played.seed, played.digest) != played.digest:
                raise AssertionError(f"seed {played.seed} tells different stories under two hash seeds")
        advanced(len(outcomes))
        if result.failed:
            break
    result.failed.sort(key=lambda played: played.seed)
    if len(seeds) >= _SEEDS_OF_A_LONG_SWEEP and not (result.failed or brokers):
        result.missing = sorted(MUST_HAPPEN - result.happened.keys())
    return result


def _chunks(seeds: range, processes: int, brokers: int | None) -> Iterator[Sequence[Played]]:
    chunks = [seeds[first : first + _CHUNK] for first in range(0, len(seeds), _CHUNK)]
    if len(seeds) <= _SEEDS_OF_ONE_PROCESS:
        yield from (_play(chunk, brokers) for chunk in chunks)
        return
    pools = [_process(str(number)) for number in range(1, 1 + max(2, processes))]
    pending: list[Future[Sequence[Played]]] = []
    for number, chunk in enumerate(chunks):
        pending.append(pools[number % len(pools)].submit(_play, chunk, brokers))
        twice = [seed for seed in chunk if seed % _PLAYED_TWICE_EACH == 0]
        pending.append(pools[(number + 1) % len(pools)].submit(_play, twice, brokers))
    try:
        # In the order of the seeds, so that the first failure is the same however many processes there are.
        yield from (done.result() for done in pending)
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


def _process(hash_seed: str) -> ProcessPoolExecutor:
    """Return a process with this hash seed, which is fixed when it starts."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = hash_seed
    try:
        pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=silence_brokers)
        pool.submit(_play, (), None).result()
    finally:
        del os.environ["PYTHONHASHSEED"]
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before
    return pool


def silence_brokers() -> None:
    """Let this process log nothing of brokers: crashes are expected, so their log lines are noise."""
    getLogger("conveyor").setLevel(CRITICAL)


def _play(seeds: Sequence[int], brokers: int | None) -> list[Played]:
    return [_play_seed(seed, brokers) for seed in seeds]


def _play_seed(seed: int, brokers: int | None) -> Played:
    began_s = time.process_time()
    outcome = play(make_schedule(seed, brokers=brokers))
    return Played(
        seed=seed,
        failure="" if outcome.failure is None else repr(outcome.failure),
        happened=outcome.happened,
        digest=outcome.digest,
        cpu_s=time.process_time() - began_s,
    )
