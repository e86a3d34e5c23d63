"""Sweeps of many seeds: their outcomes, in one process and in two."""

import pytest

from simulation import sweep as sweeps
from simulation.sweep import sweep


def test_a_short_sweep_is_played_in_this_process() -> None:
    advanced: list[int] = []
    result = sweep(range(3, 5), advanced.append)

    assert advanced == [2]
    assert not result.failed
    assert result.cpu_s > 0


def test_a_long_sweep_tells_the_same_stories_in_two_processes_and_says_what_has_not_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweeps, "_SEEDS_OF_ONE_PROCESS", 1)
    monkeypatch.setattr(sweeps, "_SEEDS_OF_A_LONG_SWEEP", 1)
    monkeypatch.setattr(sweeps, "_CHUNK", 1)
    advanced: list[int] = []
    result = sweep(range(20, 22), advanced.append)

    assert sum(advanced) == 3, "seed 20 is played twice"
    assert not result.failed
    assert set(result.missing).isdisjoint(result.happened)
    assert "wipe" in {*result.missing, *result.happened}


def test_the_number_of_processes_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "_SEEDS_OF_ONE_PROCESS", 1)
    monkeypatch.setattr(sweeps, "_CHUNK", 1)
    two, three = (sweep(range(20, 23), lambda _: None, processes) for processes in (2, 3))

    assert two.happened == three.happened
