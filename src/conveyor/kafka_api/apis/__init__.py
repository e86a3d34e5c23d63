"""The handlers: one file for each API, named by its key, in a room for each noun.

The docstring of each file lists the additions of its versions. Bytes and connections belong to `wire`, the table of all
handlers to `registry`.
"""
