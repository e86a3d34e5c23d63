"""Compaction of one log: the plan, the rewrite of sealed segments, and the swap of the result.

Here: which records survive, and how files change. Not here: when compaction runs, and in which process
(`broker.partitions.compaction`, `adapters.compactor`).
"""
