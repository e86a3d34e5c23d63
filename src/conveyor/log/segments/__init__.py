"""The files of one log: segments, their sparse indexes and seals, and lookups in them.

Here: one segment at a time. Not here: which segments a log has (`log.log`, `log.recovery`).
"""
