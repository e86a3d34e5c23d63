"""A whole broker and its clients in one thread, from one seed: virtual time, a disk that fails, named invariants.

A seed makes a schedule: a list of steps with their times. Playing the schedule starts a broker on a memory disk, lets
clients publish, read, commit, lease and settle through it, and injects faults: crashes, power cuts, failing syncs, a
full disk, a stepped wall clock. A ledger compares every reply with what was acknowledged before. The same seed gives
the same story on every machine; a story that breaks an invariant is shrunk to the steps that are needed for it.

    python -m conveyor.testing.simulation --seed 7
    python -m conveyor.testing.simulation --seeds 1000
"""
