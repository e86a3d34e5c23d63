"""Consumer groups as a state machine on a partition of `__consumer_offsets`: membership, and committed offsets."""
