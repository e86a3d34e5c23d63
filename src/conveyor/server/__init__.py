"""The asyncio shell of a broker: sockets, event loop, wiring, start, stop, data directory, choice
of the metadata store. Rules of the broker belong to `broker`."""
