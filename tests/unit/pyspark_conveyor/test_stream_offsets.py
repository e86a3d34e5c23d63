"""How far a micro-batch reads."""

from pyspark_conveyor.source.stream_offsets import limited


def test_partitions_contribute_in_proportion_and_each_advances() -> None:
    start, end = {"t": {0: 0, 1: 100, 2: 7}}, {"t": {0: 900, 1: 101, 2: 7}}
    assert limited(start, end, 100) == {"t": {0: 99, 1: 101, 2: 7}}
    assert limited(start, end, 901) == limited(start, end, None) == end


def test_a_log_that_has_become_shorter_is_not_hidden_by_a_limit() -> None:
    start, end = {"t": {0: 0, 1: 100}}, {"t": {0: 1000, 1: 50}}
    for most in (None, 10, 10_000):
        assert limited(start, end, most)["t"][1] == 50
