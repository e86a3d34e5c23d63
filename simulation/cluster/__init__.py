"""Several simulated brokers with one metadata store: their machines, the faults between them, and their story."""
