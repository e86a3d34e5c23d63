"""Record formats of `__consumer_offsets`, compatible with Kafka's.

Here: encoding and decoding. Not here: the effect of a record (`groups.group_machine`).
"""
