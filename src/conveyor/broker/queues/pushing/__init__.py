"""Delivery of messages by HTTP POST: a consumer of this broker's queues, as clients are, that sends what it leases.

Not here: the content of a request and the meaning of an answer (`queues.push`), the bytes of HTTP (`adapters.push`).
"""
