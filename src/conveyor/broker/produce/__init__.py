"""Producing: the stages of a batch on its way into a partition. `publish` lists them.

Here: all work between a door's bytes or single messages and `Partition.append`. Not here: the checks of a batch's bytes
(`records`).
"""
