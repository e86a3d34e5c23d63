"""Declared pipelines: what a file says, the checks before a run, the run and its directory.

Not here: what becomes of the records (`jobs`), how topics are read and written (`source`, `sink`).
"""
