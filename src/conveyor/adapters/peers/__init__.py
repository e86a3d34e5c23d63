"""The network between brokers over TCP: the handshake, the frames, and the links of one broker.

Nothing here knows what a frame means; `replication` and `broker.remote` do.
"""
