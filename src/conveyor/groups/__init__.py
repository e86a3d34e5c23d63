"""Consumer groups: one state machine for each partition of `__consumer_offsets`.

Here: the machine, its commands and replies, and committed offsets. The rooms hold the two protocols, the migration
between them, and the record formats. Not here: which broker coordinates a group (`broker.coordinators`), and the wire
protocol (`kafka_api`).
"""
