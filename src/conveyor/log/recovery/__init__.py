"""Opens a log after a stop or a crash: checks its files, truncates a damaged end, and keeps a copy of the removed part.

Here: code that runs before a log is used. Not here: checks of data that clients send (`records`).
"""
