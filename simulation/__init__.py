"""Brokers and their clients in one thread, from one seed: virtual time, faults, named invariants.

A seed determines a schedule: a list of timed steps. Playing the schedule starts one broker, three or five on memory
disks, and lets clients publish, read, commit, lease and settle through the brokers' doors: they send Kafka's bytes and
HTTP requests over connections in memory (room `doors`). Faults are crashes, power cuts, failing disks, changed clocks,
and broken connections between brokers, to clients and to the metadata store. Ledgers compare every reply with earlier
acknowledgements. The same seed gives the same story on every machine. A story that breaks an invariant is shrunk to the
steps that it needs.

    python -m simulation --seed 7
    python -m simulation --seeds 1000
"""
