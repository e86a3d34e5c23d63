"""Several brokers of one machine: the supervisor, which owns their metadata, and their processes.

The brokers themselves are the same as anywhere; nothing below this room knows that it runs in a worker.
"""
