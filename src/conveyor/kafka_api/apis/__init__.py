"""The handlers: one file for each API, named by its key, in a room for each noun.

A file's docstring lists what its versions added. Not here: bytes and connections (`wire`), the table of all handlers
(`registry`).
"""
