"""Reads a subscription as a stream: leases its messages for each micro-batch, and settles them once it is committed.

Not here: how their records are fetched (`source`).
"""
