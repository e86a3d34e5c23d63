"""Reads the segment files of a broker themselves, local or mounted, for backfills that no broker serves.

Not here: how records are decoded (`source`).
"""
