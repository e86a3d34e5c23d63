"""The log of one partition: record batches in segments, their indexes, producer state, recovery."""
