"""TLS above any connection: bytes in and out, and a transport for the protocols of asyncio.

Here: the handshake and the records of one connection. Not here: certificates, and who may connect.
"""
