"""Histories: the replies that transactional clients of a cluster received, and the anomalies in them.

Here: the history as data, and its check as a pure function. Not here: the clients that are observed (tests, or programs
of users), and the invariants of the simulation, which also knows what no client knows.
"""
