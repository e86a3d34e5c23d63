"""Record batches and records as bytes, without files: layout, checks, codecs, the headers that Conveyor reads.

Here: checks that need only the batch itself; `CheckedBatch`, which all code below the doors accepts. Not here: the
storage of a batch (`log`), its processing in a partition (`replication`, `broker.produce`).
"""
