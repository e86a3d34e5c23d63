"""The image of the cluster, the changes from one image to the next, and decisions as pure functions of an image.

Here: the state that all brokers share. Not here: storing and observing changes (`broker.metadata`), applying them to
this broker's partitions (`broker.partitions`).
"""
