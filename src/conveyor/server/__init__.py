"""The asyncio shell: sockets, the event loop, wiring, start and stop."""
