"""A whole broker or cluster and its clients in one thread, from one seed: virtual time, faults, named invariants.

A seed determines a schedule: a list of timed steps. Playing the schedule starts a broker on a memory disk, lets clients
publish, read, commit, lease and settle, and injects faults: crashes, power cuts, failing syncs, a full disk, a changed
wall clock. Ledgers compare every reply with earlier acknowledgements. The same seed gives the same story on every
machine. The story of a cluster (room `cluster`) has three brokers; it adds faults of the network and of the sessions
with the metadata store. A story that breaks an invariant is shrunk to the steps that it needs.

    python -m simulation --seed 7
    python -m simulation --seeds 1000
"""
