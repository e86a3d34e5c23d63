"""Delayed topics: a state machine for each of their partitions decides which records are due, and how they are appended
to the target exactly once. The machine reads logs and changes none; `broker.coordinators` appends what it decides.
"""
