"""Transactions in one partition's log: which are open, which are undecided, and the index of the aborted ones.

Here: what the markers in the log mean for its readers. Not here: the fencing and sequences of producers (`producers`),
the marker's bytes (`records`), and the coordinator, which decides outcomes.
"""
