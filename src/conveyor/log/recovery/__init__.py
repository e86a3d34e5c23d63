"""Opens one log after a stop or a crash: checks its files, truncates a damaged end, and keeps what it removes.

Here: code that runs before a log is used. Not here: checks of data that clients send (`records`),
and what follows for the broker if a log lacks records (`broker.partitions`).
"""
