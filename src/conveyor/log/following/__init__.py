"""A follower's log: it copies what its leader stored, and removes the end that its leader does not have.

Not here: the protocol between both, and the choice of the offset (`replication`).
"""
