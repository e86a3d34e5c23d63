"""Who lives: this broker's way into the cluster and out of it, whether it is cut off, and the deaths of other brokers.

Here: what joins this broker, and watches it and the others. Not here: the registration and the lease
(`BrokerSession` in `broker.metadata`), the decisions (`cluster.controller`), failed disks (`broker.replicas`).
"""
