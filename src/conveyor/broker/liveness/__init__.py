"""Joins this broker to the cluster, removes it at shutdown, and detects that it is cut off or that another one is dead.

Here: what joins this broker, and watches it and the others. Not here: the registration and the lease
(`BrokerSession` in `broker.metadata`), the decisions (`cluster.controller`), failed disks (`broker.replicas`).
"""
