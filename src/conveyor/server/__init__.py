"""The asyncio shell of a broker: sockets, the event loop, wiring, start and stop. No rule of the broker lives here."""
