"""Simulated brokers on one loop: their machines, the network between them, the metadata store, and what must hold."""
