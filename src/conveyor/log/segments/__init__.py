"""The files of one log: segments, their sparse indexes and seals, and lookups in them.

Here: segments, their order and their files. Not here: which of them a log keeps (`log`, `log.recovery`).
"""
