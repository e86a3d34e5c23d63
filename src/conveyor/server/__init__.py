"""The asyncio shell of a broker: sockets, event loop, wiring, start, stop. Rules of the broker belong to `broker`."""
