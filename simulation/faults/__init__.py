"""Faults of brokers, machines, data directories, clocks, the network and the metadata store."""
