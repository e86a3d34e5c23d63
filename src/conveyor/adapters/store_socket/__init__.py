"""The metadata store of several processes on one machine: one of them owns it and serves it over a Unix socket.

The store itself is in `adapters/sqlite_tree.py`; what the processes are is the matter of `server/workers`.
"""
