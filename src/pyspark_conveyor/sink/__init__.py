"""Writes rows to topics: `format("conveyor")` as the target of a batch or a stream.

Not here: reading (`source`).
"""
